// Weights are the rows of the first operand. 32 of them by PANEL columns, unpacked, are 16 KiB: they stay in the first
// cache, and activations come from the second. While a panel is multiplied the next one is unpacked: the tile unit
// takes 16 cycles for each multiplication, in which the vector units have nothing else to do.
//
// Each sum is formed column by column over the whole depth in one tile, or is stored and loaded again in between: so a
// row's results are the same to the last bit whatever the number of rows.
#include "tile_products.hpp"

#include <vector>

#include "tile_formats.hpp"

namespace tiles {
namespace {

static_assert(BLOCK_BYTES == STEPS * amx::TILE_BYTES);

struct alignas(64) Line {
    uint8_t bytes[64];
};

// ---- activations

// Where 32 numbers in a format's order come from: places in two of the vectors of a panel.
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

// ---- weights

// How many steps a panel has; orders go over two blocks of 32.
int steps_of(int64_t depth, int64_t panel) {
    return static_cast<int>(std::min<int64_t>(STEPS, (depth - panel * PANEL + 2 * STEP - 1) / (2 * STEP) * 2));
}

// Unpacks rows of a group up to `end`. Meanwhile the group behind it is fetched: with multiplications in between, the CPU
// looks too few rows ahead to hide the memory's latency.
template <class Format>
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
        unpack_panel<Format>(from, group.to + (at + row / 16 * group.num_panels) * BLOCK_BYTES + row % 16 * 64);
    }
}

// ---- products

// A group: panels whose sums stay in the tiles. One panel: two groups fit in the first cache. Two: sums are loaded and
// stored half as often, which is worth more with many rows.
constexpr int FEW_ROWS = 64, MOST_PANELS = 2, CUT_BLOCKS = 32, CUT_PANELS = 4;  // the latter: 1 MiB of activations

// 2 x 2 tiles, with vector work between the multiplications. `half`: bytes of 16 weights.
template <class Work>
ALWAYS_INLINE void step_2x2(const uint8_t* a, size_t half, const uint8_t* b, const Work& work) {
    amx::load<4>(a);
    amx::load_once<6>(b);
    amx::load_once<7>(b + BLOCK_BYTES);
    amx::load<5>(a + half);
    amx::multiply_bf16<0, 4, 6>();
    work(0);
    amx::multiply_bf16<1, 4, 7>();
    work(1);
    amx::multiply_bf16<2, 5, 6>();
    work(2);
    amx::multiply_bf16<3, 5, 7>();
    work(3);
}
// 2 x 1 tiles, for 16 rows at most, where unpacking takes the time.
ALWAYS_INLINE void step_2x1(const uint8_t* a, size_t half, const uint8_t* b) {
    amx::load_once<6>(b);
    amx::load<4>(a);
    amx::multiply_bf16<0, 4, 6>();
    amx::load<5>(a + half);
    amx::multiply_bf16<2, 5, 6>();
}

// Sums of 32 weights and 32 rows: tiles (weights 0-15, rows 0-15), (0-15, 16-31), (16-31, 0-15), (16-31, 16-31).
struct alignas(64) Sums {
    float tile[4][256];

    void load() const { amx::load<0>(tile[0]), amx::load<1>(tile[1]), amx::load<2>(tile[2]), amx::load<3>(tile[3]); }
    void store() { amx::store<0>(tile[0]), amx::store<1>(tile[1]), amx::store<2>(tile[2]), amx::store<3>(tile[3]); }
    static void zero() { amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>(); }
};

// A job's weights times a cut of its activations: `num_blocks` from `first_block` on.
class CutOfRows {
public:
    CutOfRows(const Kernel& kernel, const Multiplying& job, int64_t first_block, int64_t num_blocks)
        : kernel_{kernel}, job_{job}, first_block_{first_block}, num_pairs_{num_blocks / 2},
          group_{job.num_rows <= FEW_ROWS ? 1 : MOST_PANELS},
          is_single_{job.num_rows - first_block * BLOCK_ROWS <= BLOCK_ROWS} {
        static thread_local std::vector<Line> scratch;
        const size_t size = 2 * GROUP_BYTES + MOST_OUTS / OUTS * num_pairs_ * sizeof(Sums);
        if (scratch.size() * sizeof(Line) < size) scratch = std::vector<Line>(size / sizeof(Line));
        weights_ = scratch[0].bytes;
        sums_ = reinterpret_cast<Sums*>(weights_ + 2 * GROUP_BYTES);
    }

    void compute() const {
        const int64_t panels = panels_of(job_.depth), cut = num_pairs_ == 1 ? panels : CUT_PANELS;
        for (int64_t panel = 0; panel < panels; panel += cut) multiply_panels(panel, std::min(panel + cut, panels));
        for (int64_t pair = 0; pair < num_pairs_; pair++) write(pair);
    }

private:
    static constexpr int GROUP_BYTES = MOST_PANELS * 2 * BLOCK_BYTES;

    // Group after group of panels, and all of them for a tile of outs before the next tile.
    void multiply_panels(int64_t first, int64_t end) const {
        const int64_t groups = (end - first + group_ - 1) / group_, total = (job_.end - job_.begin + OUTS - 1) / OUTS * groups;
        const auto out = [&](int64_t i) { return job_.begin + i / groups * OUTS; };
        const auto panel = [&](int64_t i) { return first + i % groups * group_; };
        const auto unpacking = [&](int64_t i) {
            const int64_t behind = std::min(i + 1, total - 1), count = std::min<int64_t>(group_, end - panel(i));
            uint8_t* to = weights_ + i % 2 * GROUP_BYTES;
            return Unpacking{&job_, out(i), panel(i), out(behind), panel(behind), static_cast<int>(count), to};
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
    }

    // All rows times one group of panels, while the next is unpacked. For a single pair of blocks sums stay in the tiles
    // over the whole depth.
    void multiply_group(const Unpacking& group, Sums* sums, Unpacking& next) const {
        const size_t half = size_t(group.num_panels) * BLOCK_BYTES;
        const int64_t end = group.panel + group.num_panels;
        int64_t steps = 0;
        for (int64_t panel = group.panel; panel < end; panel++) steps += steps_of(job_.depth, panel) * num_pairs_;
        const int share = static_cast<int>((next.size() + steps - 1) / steps);
        const auto advance = [&](int count) {
            if (count > 0 && next.done < next.size()) kernel_.unpack(next, std::min(next.size(), next.done + count));
        };
        for (int64_t pair = 0; pair < num_pairs_; pair++) {
            if (group.panel == 0) Sums::zero();
            else if (num_pairs_ > 1) sums[pair].load();
            for (int64_t panel = group.panel; panel < end; panel++) {
                const uint8_t* a = group.to + (panel - group.panel) * BLOCK_BYTES;
                const uint8_t* b = job_.activations.at(panel, job_.first_block + first_block_ + 2 * pair);
                for (int s = steps_of(job_.depth, panel); s > 0; s--, a += amx::TILE_BYTES, b += amx::TILE_BYTES)
                    if (is_single_) step_2x1(a, half, b), advance(share);
                    else step_2x2(a, half, b, [&](int at) { advance((share + 3 - at) / 4); });
            }
            if (num_pairs_ > 1 || end == panels_of(job_.depth)) sums[pair].store();
        }
    }

    // Writes the results of up to 32 rows, as many of each as the job has: where rows are a power of two apart, lines of all
    // rows share one set of the first cache, and with 128 bytes of each the stores took longer than the multiplications.
    void write(int64_t pair) const {
        alignas(64) float turned[16][16], all[2 * BLOCK_ROWS][MOST_OUTS];
        const int64_t first = BLOCK_ROWS * (first_block_ + 2 * pair);
        const int num_rows = static_cast<int>(std::min<int64_t>(job_.num_rows - first, 2 * BLOCK_ROWS));
        const int num_outs = static_cast<int>(job_.end - job_.begin);
        for (int out = 0; out < num_outs; out += OUTS)
            for (int tile = 0; tile < 4; tile++) {
                const int row = tile % 2 * BLOCK_ROWS;
                if (row >= num_rows) continue;
                const float* sums = sums_[out / OUTS * num_pairs_ + pair].tile[tile];
                transpose_16(reinterpret_cast<const uint32_t*>(sums), 16, reinterpret_cast<uint32_t*>(turned));
                for (int r = 0; r < BLOCK_ROWS; r++) std::memcpy(all[row + r] + out + tile / 2 * 16, turned[r], sizeof turned[r]);
            }
        const float* factors = job_.activations.factors + BLOCK_ROWS * job_.first_block + first;
        for (int r = 0; r < num_rows; r++) {
            float* to = job_.results[first + r] + job_.begin;
            for (int out = 0; out < num_outs; out++) to[out] = all[r][out] * factors[r];
        }
    }

    const Kernel& kernel_;
    const Multiplying& job_;
    int64_t first_block_, num_pairs_;
    int group_;  // panels
    bool is_single_;
    uint8_t* weights_;
    Sums* sums_;
};

template <class Format>
const Kernel* kernel() {
    static constexpr Kernel kernel{pack<typename Format::Order, Format::POWER>, unpack<Format>};
    return &kernel;
}

}  // namespace

void multiply(const Kernel& kernel, const Multiplying& job) {
    const int64_t blocks = blocks_of(job.num_rows);
    for (int64_t block = 0; block < blocks; block += CUT_BLOCKS)
        CutOfRows{kernel, job, block, std::min<int64_t>(CUT_BLOCKS, blocks - block)}.compute();
}

const Kernel* kernel_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return kernel<F16>();
        case GGML_TYPE_BF16: return kernel<BF16>();
        case GGML_TYPE_Q4_0: return kernel<Q4_0>();
        case GGML_TYPE_Q4_1: return kernel<Q4_1>();
        case GGML_TYPE_Q5_0: return kernel<ByGgml<GGML_TYPE_Q5_0, 32, 22>>();
        case GGML_TYPE_Q5_1: return kernel<ByGgml<GGML_TYPE_Q5_1, 32, 24>>();
        case GGML_TYPE_Q8_0: return kernel<Q8_0>();
        case GGML_TYPE_Q2_K: return kernel<Q2_K>();
        case GGML_TYPE_Q3_K: return kernel<Q3_K>();
        case GGML_TYPE_Q4_K: return kernel<Q4_K>();
        case GGML_TYPE_Q5_K: return kernel<Q5_K>();
        case GGML_TYPE_Q6_K: return kernel<Q6_K>();
        case GGML_TYPE_IQ4_NL: return kernel<IQ4_NL>();
        case GGML_TYPE_IQ4_XS: return kernel<IQ4_XS>();
        case GGML_TYPE_MXFP4: return kernel<MXFP4>();
        case GGML_TYPE_IQ2_XXS: return kernel<ByGgml<GGML_TYPE_IQ2_XXS, 256, 66>>();
        case GGML_TYPE_IQ2_XS: return kernel<ByGgml<GGML_TYPE_IQ2_XS, 256, 74>>();
        case GGML_TYPE_IQ2_S: return kernel<ByGgml<GGML_TYPE_IQ2_S, 256, 82>>();
        case GGML_TYPE_IQ3_XXS: return kernel<ByGgml<GGML_TYPE_IQ3_XXS, 256, 98>>();
        case GGML_TYPE_IQ3_S: return kernel<ByGgml<GGML_TYPE_IQ3_S, 256, 110>>();
        default: return nullptr;
    }
}

}  // namespace tiles
