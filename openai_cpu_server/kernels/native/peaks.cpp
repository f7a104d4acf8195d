// Peak rates of one thread of this CPU, for `scripts/regress.py steps`: loops that do one thing only.
#include <utility>

#include "amx.hpp"
#include "int8_lanes.hpp"

namespace {

// As many as hide the latency of one operation, whatever the instruction set; each lives in a register.
constexpr int CHAINS = simd::REGISTERS * 3 / 4;
constexpr int CACHE_LINE = 64;
constexpr int AHEAD = 4096;  // bytes to fetch ahead

// Applies `next` to each chain repeatedly. Chains are written out, because a loop would leave them in memory.
template <class Vector, class Next, size_t... CHAIN>
void run(Vector (&chains)[CHAINS], long rounds, Next next, std::index_sequence<CHAIN...>) {
    for (long round = 0; round < rounds; round++) ((chains[CHAIN] = next(chains[CHAIN])), ...);
}

constexpr auto ALL = std::make_index_sequence<CHAINS>();

}  // namespace

extern "C" {

// Multiplies bytes, `rounds` times with all chains. Returns the number of multiply-adds. The sums are of 16 bits where
// kernels keep them so most of the time.
long ocs_multiply_bytes(long rounds, int32_t* result) {
    using namespace products;
    ints sums[CHAINS];
    for (int i = 0; i < CHAINS; i++) sums[i] = splat(0x01020304 + i);
    const ints weights = splat(0x01010101);
    const auto next = [&](ints sum) {  // multiplied by itself, else the product leaves the loop
        if constexpr (HAS_PAIRS) return simd::in_register((ints)((pairs)sum + multiply_pairs(weights, sum)));
        else return dot(sum, weights, sum);
    };
    run(sums, rounds, next, ALL);
    for (const ints& sum : sums) *result += total(sum);
    return rounds * CHAINS * LANES * 4;
}

// Multiplies floats, `rounds` times with all chains. Returns the number of multiply-adds.
long ocs_multiply_floats(long rounds, float* result) {
    using namespace simd;
    floats sums[CHAINS];
    for (int i = 0; i < CHAINS; i++) sums[i] = splat(1.0F + i);
    const floats factor = splat(*result), summand = splat(*result / 3);
    run(sums, rounds, [&](floats sum) { return sum * factor + summand; }, ALL);
    for (const floats& sum : sums) *result += total(sum);
    return rounds * CHAINS * LANES;
}

// Multiplies bf16 in tiles of real numbers (zeros would be faster: the clock rises), `rounds` times with four sums.
// Returns the number of multiply-adds.
long ocs_multiply_tiles(long rounds, float* result) {
    alignas(64) uint32_t numbers[2][amx::TILE_BYTES / 4];
    for (uint32_t i = 0; i < 512; i++) numbers[i / 256][i % 256] = 0x3f803f80 + i * 0x9e3779b9 % 0x00800080;
    amx::configure();
    amx::load<4>(numbers[0]), amx::load<5>(numbers[1]), amx::load<6>(numbers[1]), amx::load<7>(numbers[0]);
    amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
    for (long round = 0; round < rounds; round++) {
        amx::multiply_bf16<0, 4, 6>();
        amx::multiply_bf16<1, 4, 7>();
        amx::multiply_bf16<2, 5, 6>();
        amx::multiply_bf16<3, 5, 7>();
    }
    amx::store<0>(numbers[0]);
    amx::release();
    std::memcpy(result, numbers[0], sizeof *result);
    return rounds * 4 * 16 * 16 * 32;
}

// Reads memory from one end to the other.
void ocs_read(const uint8_t* from, long num_bytes, int32_t* result) {
    using products::ints;
    constexpr int AT_ONCE = 4 * CACHE_LINE / static_cast<int>(sizeof(ints));
    ints sums[AT_ONCE]{};
    for (const uint8_t* end = from + num_bytes / (4 * CACHE_LINE) * (4 * CACHE_LINE); from < end;) {
        for (int line = 0; line < 4; line++) __builtin_prefetch(from + AHEAD + line * CACHE_LINE);
        for (ints& sum : sums) {
            ints words;
            std::memcpy(&words, from, sizeof words);
            sum ^= words;
            from += sizeof words;
        }
    }
    for (const ints& sum : sums) *result += products::total(sum);
}
}
