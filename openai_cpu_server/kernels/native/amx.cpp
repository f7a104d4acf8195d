#include "amx.hpp"

#include <cmath>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace amx {
namespace {

#if defined(__x86_64__) && defined(__linux__)

bool has_instructions() {
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24, BYTES = 1u << 25;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & BF16) && (edx & TILES) && (edx & BYTES);
}

// Returns true if the kernel, or the hypervisor below it, saves the state of tiles at all.
bool is_state_enabled() {
    constexpr unsigned OSXSAVE = 1u << 27, TILE_STATES = 3u << 17;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & OSXSAVE)) return false;
    asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (eax & TILE_STATES) == TILE_STATES;
}

bool is_permitted() {
    constexpr long GET_PERMISSION = 0x1022, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    uint64_t permitted = 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 &&
           syscall(SYS_arch_prctl, GET_PERMISSION, &permitted) == 0 && (permitted >> TILE_DATA & 1);
}

const char* obstacle() {
    if (!has_instructions()) return "this CPU has no AMX";
    if (IS_EMULATED) return "the library was compiled without AMX";
    if (!is_state_enabled()) return "this machine does not enable AMX";
    if (!is_permitted()) return "this system does not permit AMX";
    return nullptr;
}

#else

const char* obstacle() { return "this CPU has no AMX"; }

#endif

}  // namespace

const char* why_no_tiles() {
    static const char* const why = obstacle();
    return why;
}

#if !defined(HAS_TILES)

namespace {

inline float without_denormals(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

inline float from_bf16(uint16_t x) {
    const uint32_t bits = uint32_t{x} << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return without_denormals(number);
}

// even[k], odd[k]: numbers of row k of a second operand, for each column of the result.
struct Columns {
    float even[TILE_ROWS][16], odd[TILE_ROWS][16];
};

Columns columns_of(const Tile& tile) {
    uint16_t words[TILE_ROWS][32];
    std::memcpy(words, &tile, sizeof words);
    Columns columns;
    for (int k = 0; k < TILE_ROWS; k++)
        for (int n = 0; n < 16; n++) {
            columns.even[k][n] = from_bf16(words[k][2 * n]);
            columns.odd[k][n] = from_bf16(words[k][2 * n + 1]);
        }
    return columns;
}

}  // namespace

void multiply_bf16(Tile& to, const Tile& a, const Tile& b) {
    const Columns of_a = columns_of(a), of_b = columns_of(b);
    float sums[TILE_ROWS][16];
    std::memcpy(sums, &to, sizeof sums);
    for (int m = 0; m < TILE_ROWS; m++) {
        float even[16]{}, odd[16]{};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++) {
                even[n] = without_denormals(std::fma(of_a.even[m][k], of_b.even[k][n], even[n]));
                odd[n] = without_denormals(std::fma(of_a.odd[m][k], of_b.odd[k][n], odd[n]));
            }
        for (int n = 0; n < 16; n++)
            sums[m][n] = without_denormals(without_denormals(sums[m][n]) + without_denormals(even[n] + odd[n]));
    }
    std::memcpy(&to, sums, sizeof sums);
}

void multiply_bytes(Tile& to, const Tile& a, const Tile& b) {
    int8_t of_a[TILE_ROWS][64], of_b[TILE_ROWS][64];
    std::memcpy(of_a, &a, sizeof of_a), std::memcpy(of_b, &b, sizeof of_b);
    int32_t sums[TILE_ROWS][16];
    std::memcpy(sums, &to, sizeof sums);
    for (int m = 0; m < TILE_ROWS; m++)
        for (int k = 0; k < 64; k++)
            for (int n = 0; n < 16; n++) sums[m][n] += of_a[m][k] * of_b[k / 4][4 * n + k % 4];
    std::memcpy(&to, sums, sizeof sums);
}

#endif

}  // namespace amx
