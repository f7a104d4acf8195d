// Weights are the rows of the first operand. 32 of them by PANEL columns, unpacked, are 16 KiB (8 of bytes): they stay in
// the first cache, and activations come from the second. While a panel is multiplied the next one is unpacked: the tile
// unit takes 16 cycles for each multiplication, in which the vector units have nothing else to do.
//
// Each sum of bf16 is formed column by column over the whole depth in one tile, or is stored and loaded again in between.
// Products of bytes are exact for a panel, and are then added times their scales, panel by panel. So a row's results are
// the same to the last bit whatever the number of rows.
#include "tile_products.hpp"

#include <utility>
#include <vector>

#include "activations.hpp"
#include "tile_bytes.hpp"

namespace tiles {
namespace {

struct alignas(64) Line {
    uint8_t bytes[64];
};

// Type of the multiplied numbers, and bytes of 16 rows of a panel.
struct Halves {
    static constexpr bool ARE_BYTES = false;
    static constexpr int COLUMNS = STEP, TILES_BYTES = STEPS * amx::TILE_BYTES, BLOCK_BYTES = TILES_BYTES;

    template <int TO, int A, int B>
    static ALWAYS_INLINE void multiply() { amx::multiply_bf16<TO, A, B>(); }
};
// Blocks of activations have the scales of their rows behind them.
struct Bytes {
    static constexpr bool ARE_BYTES = true;
    static constexpr int COLUMNS = BYTES_STEP, TILES_BYTES = BYTES_STEPS * amx::TILE_BYTES, BLOCK_BYTES = TILES_BYTES + 64;

    template <int TO, int A, int B>
    static ALWAYS_INLINE void multiply() { amx::multiply_bytes<TO, A, B>(); }
};

// ---- activations

// Sources of 32 numbers in a format's order: places in two of the vectors of a panel.
template <class Order>
struct Gather {
    int first[STEPS], second[STEPS];
    words places[STEPS];

    Gather() {
        for (int s = 0; s < STEPS; s++) {
            first[s] = second[s] = Order::column(STEP * s) / STEP;
            for (int i = 0; i < STEP; i++) {
                const int column = Order::column(STEP * s + i), vector = column / STEP;
                if (vector != first[s]) second[s] = vector;
                places[s][i] = uint16_t(column % STEP + (vector == first[s] ? 0 : STEP));
            }
        }
    }

    void step(const uint16_t* from, int s, uint16_t* to) const {
        const uint16_t *a = from + STEP * first[s], *b = from + STEP * second[s];
#if defined(INSTRUCTION_SET_512)
        const __m512i both = _mm512_permutex2var_epi16(_mm512_loadu_si512(a), (__m512i)places[s], _mm512_loadu_si512(b));
        _mm512_storeu_si512(to, both);
#else
        for (int i = 0; i < STEP; i++) to[i] = places[s][i] < STEP ? a[places[s][i]] : b[places[s][i] - STEP];
#endif
    }
};

// The largest exponent of a row, 255 if it has an infinity or a NaN.
int largest_exponent(const float* row, int64_t depth) {
    simd::ints magnitudes{};
    int64_t i = 0;
    for (; i + simd::LANES <= depth; i += simd::LANES) {
        const simd::ints next = (simd::ints)simd::load(row + i) & 0x7fffffff;
        magnitudes = next > magnitudes ? next : magnitudes;
    }
    int32_t largest = products::largest(magnitudes);
    for (; i < depth; i++) largest = std::max(largest, read<int32_t>(row + i) & 0x7fffffff);
    return largest >> 23;
}

float power_of_two(int biased_exponent) {
    const uint32_t bits = uint32_t(biased_exponent) << 23;
    return read<float>(&bits);
}

// Rows are packed times a power of two that makes their largest numbers about 2^POWER, so that none leaves the range.
template <class Order, int POWER>
void pack(const Packing& packing) {
    static const Gather<Order> gather;
    constexpr bool IS_ORDERED = std::is_same_v<Order, AsStored>;
    alignas(64) uint16_t rows[BLOCK_ROWS][PANEL], row[PANEL];
    float factors[BLOCK_ROWS], padded[PANEL];
    for (int r = 0; r < packing.count; r++) {
        const int exponent = std::clamp(largest_exponent(packing.rows[r], packing.depth), std::max(POWER, 1), 253);
        factors[r] = power_of_two(254 + POWER - exponent);
        packing.to.factors[packing.block * BLOCK_ROWS + r] = power_of_two(exponent);
    }
    std::memset(rows, 0, sizeof rows);
    for (int64_t panel = packing.first_panel; panel < packing.end_panel; panel++) {
        const int64_t left = packing.depth - panel * PANEL;
        for (int r = 0; r < packing.count; r++) {
            const float* from = packing.rows[r] + panel * PANEL;
            if (left < PANEL) {
                std::fill(std::copy_n(from, left, padded), padded + PANEL, 0.0F);
                from = padded;
            }
            uint16_t* to = IS_ORDERED ? rows[r] : row;
            for (int s = 0; s < STEPS; s++) amx::store_bf16(to + STEP * s, from + STEP * s, factors[r]);
            if (!IS_ORDERED)
                for (int s = 0; s < STEPS; s++) gather.step(row, s, rows[r] + STEP * s);
        }
        uint8_t* to = packing.to.at(panel, packing.block);
        for (int s = 0; s < STEPS; s++)
            transpose_16(reinterpret_cast<uint32_t*>(&rows[0][STEP * s]), PANEL / 2,
                         reinterpret_cast<uint32_t*>(to + s * amx::TILE_BYTES));
    }
}

// The first columns of a panel of some rows, 256 in all, each times the factor that makes its largest number 127.
template <class Order>
void pack_bytes(const Packing& packing) {
    alignas(64) int8_t rows[BLOCK_ROWS][PANEL]{}, row[PANEL];
    float scales[BLOCK_ROWS]{};
    for (int64_t panel = packing.first_panel; panel < packing.end_panel; panel++) {
        for (int r = 0; r < packing.count; r++) {
            const float* from = packing.rows[r] + panel * PANEL;
            scales[r] = products::largest_magnitude<PANEL>(from) * (1 / 127.0F);
            products::quantise_block<PANEL>(from, scales[r] > 0 ? 1 / scales[r] : 0, row);
            for (int i = 0; i < PANEL; i += 16) std::memcpy(rows[r] + i, row + Order::column(i), 16);
        }
        uint8_t* to = packing.to.at(panel, packing.block);
        for (int s = 0; s < BYTES_STEPS; s++)
            transpose_16(reinterpret_cast<uint32_t*>(&rows[0][BYTES_STEP * s]), PANEL / 4,
                         reinterpret_cast<uint32_t*>(to + s * amx::TILE_BYTES));
        std::memcpy(to + Bytes::TILES_BYTES, scales, sizeof scales);
    }
}

// ---- weights

// Number of steps of 32 in a panel; orders go over two blocks of 32.
int steps_of(int64_t depth, int64_t panel) {
    return static_cast<int>(std::min<int64_t>(STEPS, (depth - panel * PANEL + 2 * STEP - 1) / (2 * STEP) * 2));
}

// Unpacks rows of a group up to `end`. Meanwhile the group behind it is fetched: with multiplications in between, the CPU
// looks too few rows ahead to hide the memory's latency.
template <class Elements, class Format>
void unpack(Unpacking& group, int end) {
    const Multiplying& job = *group.job;
    const auto block = [&](int64_t row, int64_t panel) {
        return job.weights + std::min(row, job.num_outs - 1) * job.weight_stride + panel * Format::BYTES;
    };
    for (; group.done < end; group.done++) {
        const int row = group.done >> (group.num_panels - 1), at = group.done & (group.num_panels - 1);  // 1 or 2 panels
        const uint8_t *from = block(group.out + row, group.panel + at), *next = block(group.next_out + row, group.next_panel + at);
        for (int line = 0; line < Format::BYTES; line += 64) __builtin_prefetch(next + line, 0, 2);
        const int64_t left = job.depth - (group.panel + at) * PANEL;
        alignas(64) uint8_t padded[Format::BYTES];
        if (Format::BLOCK < PANEL && left < PANEL) {
            std::memset(padded, 0, sizeof padded);
            from = static_cast<uint8_t*>(std::memcpy(padded, from, left * Format::BYTES / PANEL));
        }
        uint8_t* to = group.to + (at + row / 16 * group.num_panels) * Elements::TILES_BYTES + row % 16 * 64;
        if constexpr (Elements::ARE_BYTES) {
            Heads& heads = group.heads[at];
            if (row % HEADS == 0) {
                const uint8_t* blocks[HEADS];
                for (int i = 0; i < HEADS; i++) blocks[i] = block(group.out + row + i, group.panel + at);
                Format::head(blocks, heads, group.scales + at * OUTS + row);
            }
            Format::unpack(from, heads.of[row % HEADS], to);
        } else unpack_panel<Format>(from, to);
    }
}

// ---- products

// A group: panels whose sums stay in the tiles. One panel: two groups fit in the first cache. Two: sums are loaded and
// stored half as often, which is worth more with many rows.
constexpr int FEW_ROWS = 64, MOST_PANELS = 2, CUT_BLOCKS = 32, CUT_BYTES = 1 << 20;  // of activations

// 2 x 2 tiles, with vector work between the multiplications. `half`: bytes of 16 weights.
template <class Elements, class Work>
ALWAYS_INLINE void step_2x2(const uint8_t* a, size_t half, const uint8_t* b, const Work& work) {
    amx::load<4>(a);
    amx::load_once<6>(b);
    amx::load_once<7>(b + Elements::BLOCK_BYTES);
    amx::load<5>(a + half);
    Elements::template multiply<0, 4, 6>();
    work(std::integral_constant<int, 0>{});
    Elements::template multiply<1, 4, 7>();
    work(std::integral_constant<int, 1>{});
    Elements::template multiply<2, 5, 6>();
    work(std::integral_constant<int, 2>{});
    Elements::template multiply<3, 5, 7>();
    work(std::integral_constant<int, 3>{});
}
// 2 x 1 tiles, for 16 rows at most, where unpacking takes the time.
template <class Elements>
ALWAYS_INLINE void step_2x1(const uint8_t* a, size_t half, const uint8_t* b) {
    amx::load_once<6>(b);
    amx::load<4>(a);
    Elements::template multiply<0, 4, 6>();
    amx::load<5>(a + half);
    Elements::template multiply<2, 5, 6>();
}

// Sums of 32 weights and 32 rows: tiles (weights 0-15, rows 0-15), (0-15, 16-31), (16-31, 0-15), (16-31, 16-31).
template <class Number>
struct alignas(64) TileSums {
    Number tile[4][256];

    void load() const { amx::load<0>(tile[0]), amx::load<1>(tile[1]), amx::load<2>(tile[2]), amx::load<3>(tile[3]); }
    void store() { amx::store<0>(tile[0]), amx::store<1>(tile[1]), amx::store<2>(tile[2]), amx::store<3>(tile[3]); }
    static void zero() { amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>(); }
};
using Sums = TileSums<float>;
constexpr Sums NOTHING{};

// Products of bytes of a panel that wait to be added to sums, four rows of a tile at a time.
struct Added {
    static constexpr int PARTS = 16;

    const int32_t (*products)[256] = nullptr;
    const float *of_weights = nullptr, *of_rows = nullptr;  // scales; of the second 16 rows BLOCK_BYTES behind the first's
    Sums* sums = nullptr;                                   // null: no products wait
    const Sums* before = nullptr;                           // to which they are added

    template <int PART>
    ALWAYS_INLINE void add() const {
        constexpr int TILE = PART / 4, FIRST = PART % 4 * 4;
        if (!sums) return;
#pragma GCC unroll 4
        for (int lane = 0; lane < 16; lane += simd::LANES) {
            const simd::floats of_row = simd::load(of_rows + TILE % 2 * (Bytes::BLOCK_BYTES / 4) + lane);
#pragma GCC unroll 4
            for (int out = FIRST; out < FIRST + 4; out++) {
                simd::ints integers;
                std::memcpy(&integers, products[TILE] + 16 * out + lane, sizeof integers);
                const int at = 16 * out + lane;
                const simd::floats scale = of_row * of_weights[TILE / 2 * 16 + out], sum = simd::load(before->tile[TILE] + at);
                simd::store(sums->tile[TILE] + at, simd::multiply_add(products::to_floats(integers), scale, sum));
            }
        }
    }
    template <int... PART>
    void add_all(std::integer_sequence<int, PART...>) const { (add<PART>(), ...); }
};

// A job's weights times a cut of its activations: `num_blocks` from `first_block` on.
template <class Elements>
class CutOfRows {
public:
    CutOfRows(const Kernel& kernel, const Multiplying& job, int64_t first_block, int64_t num_blocks)
        : kernel_{kernel}, job_{job}, first_block_{first_block}, num_pairs_{num_blocks / 2},
          group_{job.num_rows <= FEW_ROWS ? 1 : MOST_PANELS},
          is_single_{job.num_rows - first_block * BLOCK_ROWS <= BLOCK_ROWS} {
        static thread_local std::vector<Line> scratch;
        const size_t size = 2 * GROUP_BYTES + sizeof(Room) + MOST_OUTS / OUTS * num_pairs_ * sizeof(Sums);
        if (scratch.size() * sizeof(Line) < size) scratch = std::vector<Line>(size / sizeof(Line));
        weights_ = scratch[0].bytes;
        room_ = reinterpret_cast<Room*>(weights_ + 2 * GROUP_BYTES);
        sums_ = reinterpret_cast<Sums*>(room_ + 1);
    }

    void compute() {
        constexpr int64_t CUT_PANELS = CUT_BYTES / (CUT_BLOCKS * Elements::TILES_BYTES);
        const int64_t panels = panels_of(job_.depth), cut = num_pairs_ == 1 ? panels : CUT_PANELS;
        for (int64_t panel = 0; panel < panels; panel += cut) multiply_panels(panel, std::min(panel + cut, panels));
        for (int64_t pair = 0; pair < num_pairs_; pair++) write(pair);
    }

private:
    static constexpr int GROUP_BYTES = MOST_PANELS * 2 * Elements::TILES_BYTES, NUM_GROUPS = 3;

    // For bytes: scales of groups of weights, needed until the first panel of the next group is multiplied, while the one behind
    // that is unpacked; and products of two panels.
    struct alignas(64) Room {
        Heads heads[MOST_PANELS];
        float scales[NUM_GROUPS][MOST_PANELS * OUTS];
        TileSums<int32_t> products[2];
    };

    static int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

    // Group after group of panels, and all of them for a tile of outs before the next tile.
    void multiply_panels(int64_t first, int64_t end) {
        const int64_t groups = divided_up(end - first, group_), total = divided_up(job_.end - job_.begin, OUTS) * groups;
        const auto out = [&](int64_t i) { return job_.begin + i / groups * OUTS; };
        const auto panel = [&](int64_t i) { return first + i % groups * group_; };
        const auto unpacking = [&](int64_t i) {
            const int64_t behind = std::min(i + 1, total - 1), count = std::min<int64_t>(group_, end - panel(i));
            uint8_t* to = weights_ + i % 2 * GROUP_BYTES;
            float* scales = room_->scales[i % NUM_GROUPS];
            return Unpacking{&job_, out(i), panel(i), out(behind), panel(behind), static_cast<int>(count), to, scales, room_->heads};
        };
        Unpacking now = unpacking(0);
        kernel_.unpack(now, now.size());
        for (int64_t i = 0; i < total; i++) {
            Unpacking next = unpacking(i + 1);
            if (i + 1 == total) next.done = next.size();
            multiply_group(now, sums_ + i / groups * num_pairs_, next);
            if (next.done < next.size()) kernel_.unpack(next, next.size());
            now = next;
        }
        added_.add_all(std::make_integer_sequence<int, Added::PARTS>{});
        added_ = {};
    }

    // All rows times one group of panels, while the next is unpacked.
    void multiply_group(const Unpacking& group, Sums* sums, Unpacking& next) {
        const int64_t end = group.panel + group.num_panels;
        int64_t steps = 0;
        for (int64_t panel = group.panel; panel < end; panel++) steps += steps_of(panel) * num_pairs_;
        const int share = static_cast<int>(divided_up(next.size(), steps));
        const auto advance = [&](int count) {
            if (count > 0 && next.done < next.size()) kernel_.unpack(next, std::min(next.size(), next.done + count));
        };
        for (int64_t pair = 0; pair < num_pairs_; pair++) {
            if constexpr (Elements::ARE_BYTES)
                for (int64_t panel = group.panel; panel < end; panel++)
                    if (is_single_) multiply_bytes<true>(group, panel, pair, sums[pair], share, advance);
                    else multiply_bytes<false>(group, panel, pair, sums[pair], share, advance);
            else multiply_halves(group, pair, sums[pair], share, advance);
        }
    }

    int steps_of(int64_t panel) const { return tiles::steps_of(job_.depth, panel) * STEP / Elements::COLUMNS; }
    const uint8_t* weights_of(const Unpacking& group, int64_t panel) const {
        return group.to + (panel - group.panel) * Elements::TILES_BYTES;
    }
    const uint8_t* activations_of(int64_t panel, int64_t pair) const {
        return job_.activations.at(panel, job_.first_block + first_block_ + 2 * pair);
    }

    // For a single pair of blocks sums stay in the tiles over the whole depth.
    template <class Advance>
    void multiply_halves(const Unpacking& group, int64_t pair, Sums& sums, int share, const Advance& advance) const {
        const size_t half = size_t(group.num_panels) * Elements::TILES_BYTES;
        const int64_t end = group.panel + group.num_panels;
        if (group.panel == 0) Sums::zero();
        else if (num_pairs_ > 1) sums.load();
        for (int64_t panel = group.panel; panel < end; panel++) {
            const uint8_t *a = weights_of(group, panel), *b = activations_of(panel, pair);
            for (int s = steps_of(panel); s > 0; s--, a += amx::TILE_BYTES, b += amx::TILE_BYTES)
                if (is_single_) step_2x1<Elements>(a, half, b), advance(share);
                else step_2x2<Elements>(a, half, b, [&](int at) { advance((share + 3 - at) / 4); });
        }
        if (num_pairs_ > 1 || end == panels_of(job_.depth)) sums.store();
    }

    // A panel's products, while those of the panel before are added.
    template <bool IS_SINGLE, class Advance>
    void multiply_bytes(const Unpacking& group, int64_t panel, int64_t pair, Sums& sums, int share, const Advance& advance) {
        const uint8_t *a = weights_of(group, panel), *b = activations_of(panel, pair);
        Sums::zero();
        const auto step = [&](auto number) {
            constexpr int S = decltype(number)::value;
            const uint8_t *from = a + S * amx::TILE_BYTES, *with = b + S * amx::TILE_BYTES;
            const size_t half = size_t(group.num_panels) * Elements::TILES_BYTES;
            if constexpr (IS_SINGLE) {
                step_2x1<Elements>(from, half, with);
                added_.template add<S / 2 * 8 + S % 2 * 2>(), added_.template add<S / 2 * 8 + S % 2 * 2 + 1>();
                advance(share);
            } else
                step_2x2<Elements>(from, half, with, [&](auto at) {
                    added_.template add<4 * S + decltype(at)::value>();
                    advance((share + 3 - at) / 4);
                });
        };
        step(std::integral_constant<int, 0>{}), step(std::integral_constant<int, 1>{});
        step(std::integral_constant<int, 2>{}), step(std::integral_constant<int, 3>{});
        TileSums<int32_t>& products = room_->products[next_products_];
        next_products_ = 1 - next_products_;
        products.store();
        const auto* of_rows = reinterpret_cast<const float*>(b + Elements::TILES_BYTES);
        added_ = {products.tile, group.scales + (panel - group.panel) * OUTS, of_rows, &sums, panel ? &sums : &NOTHING};
    }

    // Writes the results of up to 32 rows, as many of each as the job has: where rows are a power of two apart, lines of all
    // rows share one set of the first cache, and with 128 bytes of each the stores took longer than the multiplications.
    // Meanwhile the lines of the next 32 rows are fetched, or stores would wait for each of them.
    void write(int64_t pair) const {
        alignas(64) float all[2 * BLOCK_ROWS][MOST_OUTS];
        const int64_t first = BLOCK_ROWS * (first_block_ + 2 * pair);
        const int num_rows = static_cast<int>(std::min<int64_t>(job_.num_rows - first, 2 * BLOCK_ROWS));
        const int num_outs = static_cast<int>(job_.end - job_.begin);
        for (int out = 0; out < num_outs; out += OUTS)
            for (int tile = 0; tile < 4; tile++) {
                const int row = tile % 2 * BLOCK_ROWS, at = out + tile / 2 * 16;
                for (int64_t next = first + 2 * BLOCK_ROWS + row, end = std::min(next + BLOCK_ROWS, job_.num_rows); next < end; next++)
                    __builtin_prefetch(job_.results[next] + job_.begin + at, 1);
                if (row >= num_rows) continue;
                const float* sums = sums_[out / OUTS * num_pairs_ + pair].tile[tile];
                transpose_16(reinterpret_cast<const uint32_t*>(sums), 16, reinterpret_cast<uint32_t*>(all[row] + at), MOST_OUTS);
            }
        const float* factors = job_.activations.factors + BLOCK_ROWS * job_.first_block + first;
        for (int r = 0; r < num_rows; r++) {
            float* to = job_.results[first + r] + job_.begin;
            if (Elements::ARE_BYTES) std::copy_n(all[r], num_outs, to);
            else for (int out = 0; out < num_outs; out++) to[out] = all[r][out] * factors[r];
        }
    }

    const Kernel& kernel_;
    const Multiplying& job_;
    int64_t first_block_, num_pairs_;
    int group_;  // panels
    bool is_single_;
    uint8_t* weights_;
    Room* room_;
    Sums* sums_;
    Added added_;
    int next_products_ = 0;
};

template <class Elements>
void multiply_job(const Kernel& kernel, const Multiplying& job) {
    const int64_t blocks = blocks_of(job.num_rows);
    for (int64_t block = 0; block < blocks; block += CUT_BLOCKS)
        CutOfRows<Elements>{kernel, job, block, std::min<int64_t>(CUT_BLOCKS, blocks - block)}.compute();
}

template <class Format>
const Kernel* kernel() {
    static constexpr Kernel kernel{Halves::BLOCK_BYTES, pack<typename Format::Order, Format::POWER>,
                                   unpack<Halves, Format>, multiply_job<Halves>};
    return &kernel;
}

template <class Format>
const Kernel* kernel_of_bytes() {
    static constexpr Kernel kernel{Bytes::BLOCK_BYTES, pack_bytes<typename Format::Order>, unpack<Bytes, Format>,
                                   multiply_job<Bytes>};
    return &kernel;
}

}  // namespace

const Kernel* kernel_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return kernel<F16>();
        case GGML_TYPE_BF16: return kernel<BF16>();
        case GGML_TYPE_Q4_0: return kernel<Q4_0>();
        case GGML_TYPE_Q4_1: return kernel<Q4_1>();
        case GGML_TYPE_Q5_0: return kernel<Q5_0>();
        case GGML_TYPE_Q5_1: return kernel<Q5_1>();
        case GGML_TYPE_Q8_0: return kernel<Q8_0>();
        case GGML_TYPE_Q2_K: return kernel<Q2_K>();
        case GGML_TYPE_Q3_K: return kernel<Q3_K>();
        case GGML_TYPE_Q4_K: return kernel_of_bytes<Q4_K>();
        case GGML_TYPE_Q5_K: return kernel_of_bytes<Q5_K>();
        case GGML_TYPE_Q6_K: return kernel_of_bytes<Q6_K>();
        case GGML_TYPE_IQ4_NL: return kernel<IQ4_NL>();
        case GGML_TYPE_IQ4_XS: return kernel<IQ4_XS>();
        case GGML_TYPE_MXFP4: return kernel<MXFP4>();
        case GGML_TYPE_IQ2_XXS: return kernel<IQ2_XXS>();
        case GGML_TYPE_IQ2_XS: return kernel<IQ2_XS>();
        case GGML_TYPE_IQ2_S: return kernel<IQ2_S>();
        case GGML_TYPE_IQ3_XXS: return kernel<IQ3_XXS>();
        case GGML_TYPE_IQ3_S: return kernel<IQ3_S>();
        default: return nullptr;
    }
}

}  // namespace tiles
