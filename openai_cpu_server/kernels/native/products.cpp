#include "products.hpp"

#include <algorithm>
#include <vector>

#include "one_row.hpp"

namespace products {
namespace {

// One product: weights of num_rows x depth, activations of width x depth, a result of width x num_rows.
struct Product {
    const uint8_t* weights;
    size_t weight_stride;
    int64_t num_rows;
    int64_t depth;
    const uint8_t* activations;
    size_t activation_stride;
    int64_t width;
    uint8_t* result;
    size_t result_stride;

    PackedRows rows_from(int64_t row, Prefetch& prefetch) const {
        return {weights + row * weight_stride, weight_stride, &prefetch};
    }
    int num_panels() const { return static_cast<int>((depth + PANEL_DEPTH - 1) / PANEL_DEPTH); }
    int num_tiles() const { return static_cast<int>((num_rows + ROWS - 1) / ROWS); }
};

Product product_of(const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    return {static_cast<const uint8_t*>(weights.data),
            weights.nb[1],
            weights.ne[1],
            weights.ne[0],
            static_cast<const uint8_t*>(activations.data),
            activations.nb[1],
            activations.ne[1],
            static_cast<uint8_t*>(node.data),
            node.nb[1]};
}

// The activations of one product as bytes, panel by panel: a panel of all rows, then the next panel.
template <class Format>
struct QuantisedActivations {
    Activations<Format>* rows;
    int64_t width;

    Activations<Format>* at(int panel, int64_t row) const { return rows + panel * width + row; }
    static size_t size(const Product& product) {
        return sizeof(Activations<Format>) * product.num_panels() * product.width;
    }
};

// Room for `size` bytes that all threads of the node share: ggml's own scratch, or, where that is too small, this
// library's, which belongs to the first thread and grows with the largest product it has met.
uint8_t* shared_room(const ggml_compute_params& params, size_t size) {
    if (size <= params.wsize) return static_cast<uint8_t*>(params.wdata);
    auto& published = *static_cast<uint8_t**>(params.wdata);
    if (params.ith == 0) {
        static thread_local std::vector<uint8_t> own;
        if (own.size() < size) own.resize(size);
        published = own.data();
    }
    ggml().barrier(params.threadpool);
    return published;
}

// Quantises this thread's share of the activations.
template <class Format>
void quantise_share(const Product& product, const ggml_compute_params& params,
                    const QuantisedActivations<Format>& quantised) {
    const int64_t count = product.width * product.num_panels();
    for (int64_t i = count * params.ith / params.nth; i < count * (params.ith + 1) / params.nth; i++) {
        const int panel = static_cast<int>(i / product.width);
        const int64_t row = i % product.width, start = int64_t{panel} * PANEL_DEPTH;
        const auto* numbers = reinterpret_cast<const float*>(product.activations + row * product.activation_stride);
        const int depth = static_cast<int>(std::min<int64_t>(PANEL_DEPTH, product.depth - start));
        quantise_panel<Format>(numbers + start, depth, *quantised.at(panel, row));
    }
}

// How the product is cut into pieces for threads: tiles, and, where these are few, ranges of the activations' rows.
struct Pieces {
    int64_t num_tiles;
    int64_t num_ranges;
    int64_t range;

    int64_t count() const { return num_tiles * num_ranges; }
};

constexpr int PIECES_FOR_EACH_THREAD = 4;  // so that a thread which is held up does not hold up all for long

Pieces pieces_of(const Product& product, int num_threads) {
    const int64_t wanted = int64_t{PIECES_FOR_EACH_THREAD} * num_threads, num_tiles = product.num_tiles();
    const int64_t most = (product.width + TILE_WIDTH / 4 - 1) / (TILE_WIDTH / 4);
    const int64_t num_ranges = std::clamp<int64_t>((wanted + num_tiles - 1) / num_tiles, 1, most);
    const int64_t range = (product.width + num_ranges - 1) / num_ranges;
    return {num_tiles, (product.width + range - 1) / range, range};
}

// The last tile is moved back to have all its rows, so some are computed twice; `first_new` is the first that is not.
struct TileRows {
    int64_t start;
    int64_t first_new;
    int64_t end;
};

TileRows rows_of_tile(const Product& product, int64_t tile) {
    const int64_t end = std::min((tile + 1) * ROWS, product.num_rows);
    return {end - ROWS, tile * ROWS, end};
}

template <class Format>
int unpack(PackedRows rows, int64_t depth, typename Format::Panel& panel) {
    constexpr bool IS_WHOLE_PANEL = Format::UNIT == PANEL_DEPTH;
    if constexpr (IS_WHOLE_PANEL) {
        Format::unpack(rows, panel);
        return Format::Panel::NUM_BLOCKS;
    } else {
        const int num_blocks = static_cast<int>(std::min<int64_t>(PANEL_DEPTH, depth)) / Format::BLOCK;
        for (int block = 0; block < num_blocks; block++)
            Format::unpack(rows.from(block * Format::BLOCK_BYTES), block, panel);
        return num_blocks;
    }
}

template <class Format>
class Tile {
public:
    Tile(const Product& product, const QuantisedActivations<Format>& activations, TileRows rows)
        : product_{product}, activations_{activations}, rows_{rows} {}

    // Computes the rows of activations from `first` on.
    void compute(int64_t first, int width, Prefetch& prefetch) {
        const PackedRows packed = product_.rows_from(rows_.start, prefetch);
        constexpr size_t PANEL_BYTES = size_t{PANEL_DEPTH} / Format::UNIT * Format::BLOCK_BYTES;
        for (int panel = 0; panel < product_.num_panels(); panel++) {
            const int64_t depth_left = product_.depth - int64_t{panel} * PANEL_DEPTH;
            const PackedRows part = packed.from(panel * PANEL_BYTES);
            if constexpr (HAS_ONE_ROW)
                if (width == 1) {
                    multiply_one_row<Format>(part, depth_left, panel == 0, activations_.at(panel, first), panel_, sums_);
                    continue;
                }
            const int num_blocks = unpack<Format>(part, depth_left, panel_);
            const UnpackedPanel<Format> unpacked{panel_, num_blocks, panel == 0};
            multiply_panel<Format>(unpacked, activations_.at(panel, first), width, sums_);
        }
        write(first, width);
    }

private:
    void write(int64_t first, int width) const {
        for (int row = 0; row < width; row++) {
            uint8_t* result = product_.result + (first + row) * product_.result_stride;
            write_row(sums_[row], reinterpret_cast<float*>(result) + rows_.start);
        }
    }

    // A tile's rows are nearly always all new: then their number is known to the compiler.
    void write_row(const float* sums, float* result) const {
        const int64_t num_old = rows_.first_new - rows_.start;
        if (num_old == 0) std::copy_n(sums, ROWS, result);
        else std::copy(sums + num_old, sums + ROWS, result + num_old);
    }

    const Product& product_;
    const QuantisedActivations<Format>& activations_;
    TileRows rows_;
    typename Format::Panel panel_;
    alignas(64) Sums sums_;
};

template <class Format>
void compute_piece(const Product& product, const QuantisedActivations<Format>& activations, const Pieces& pieces,
                   int64_t piece, int64_t next_piece) {
    Tile<Format> tile{product, activations, rows_of_tile(product, piece / pieces.num_ranges)};
    const int64_t first = piece % pieces.num_ranges * pieces.range;
    const int64_t end = std::min(first + pieces.range, product.width);
    const int64_t next_tile = std::min(next_piece / pieces.num_ranges, pieces.num_tiles - 1);
    Prefetch prefetch{product.weights + rows_of_tile(product, next_tile).start * product.weight_stride,
                      ROWS * product.weight_stride};
    for (int64_t row = first; row < end; row += TILE_WIDTH)
        tile.compute(row, static_cast<int>(std::min<int64_t>(TILE_WIDTH, end - row)), prefetch);
}

template <class Format>
void compute_as(const ggml_compute_params& params, const Product& product) {
    uint8_t* room = shared_room(params, QuantisedActivations<Format>::size(product));
    const QuantisedActivations<Format> activations{reinterpret_cast<Activations<Format>*>(room), product.width};
    const Pieces pieces = pieces_of(product, params.nth);
    if (params.ith == 0) ggml().chunk_set(params.threadpool, params.nth);
    quantise_share(product, params, activations);
    ggml().barrier(params.threadpool);
    // The next piece is drawn before this one is computed, so that its weights can be brought nearer.
    for (int64_t piece = params.ith; piece < pieces.count();) {
        const int64_t next = ggml().chunk_add(params.threadpool, 1);
        compute_piece(product, activations, pieces, piece, next);
        piece = next;
    }
}

using Compute = void (*)(const ggml_compute_params&, const Product&);

Compute compute_for(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return compute_as<Q4_0>;
        case GGML_TYPE_Q4_1: return compute_as<Q4_1>;
        case GGML_TYPE_Q5_0: return compute_as<Q5_0>;
        case GGML_TYPE_Q5_1: return compute_as<Q5_1>;
        case GGML_TYPE_Q8_0: return compute_as<Q8_0>;
        case GGML_TYPE_Q4_K: return compute_as<Q4_K>;
        case GGML_TYPE_Q5_K: return compute_as<Q5_K>;
        case GGML_TYPE_Q6_K: return compute_as<Q6_K>;
        default: return nullptr;
    }
}

bool is_matrix(const ggml_tensor& tensor) { return tensor.ne[2] == 1 && tensor.ne[3] == 1; }

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    const bool has_hint = node.op_params[1] != 0;
    return HAS_DOT && !params.use_ref && !has_hint && compute_for(weights.type) && is_matrix(weights) && is_matrix(activations) &&
           activations.type == GGML_TYPE_F32 && activations.nb[0] == sizeof(float) && node.nb[0] == sizeof(float) &&
           weights.ne[1] >= ROWS && params.wsize >= sizeof(void*);
}

void compute(const ggml_compute_params& params, ggml_tensor& node) {
    compute_for(node.src[0]->type)(params, product_of(node));
}

}  // namespace products
