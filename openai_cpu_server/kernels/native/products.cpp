#include "products.hpp"

#include <algorithm>
#include <vector>

#include "one_row.hpp"

namespace products {
namespace {

// Rows of floats, one for each slot of each token.
struct Rows {
    uint8_t* data;
    size_t slot_stride;
    size_t token_stride;

    float* at(int64_t token, int64_t slot) const {
        return reinterpret_cast<float*>(data + token * token_stride + slot * slot_stride);
    }
};

// Products of activations with experts, matrices of num_rows x depth. A token has slots, each with an expert and a row
// of results; its rows of activations serve the slots in turn. A plain product has one expert, and tokens of one slot.
struct Product {
    const uint8_t* weights;
    size_t weight_stride;
    size_t expert_stride;
    int64_t num_experts;
    int64_t num_rows;
    int64_t depth;
    Rows activations;
    int64_t activation_slots;  // the rows of activations that a token has
    Rows results;
    int64_t num_slots;
    int64_t num_tokens;
    const ggml_tensor* experts;  // of tokens and slots; null: slots have them in order

    int64_t num_results() const { return num_tokens * num_slots; }
    int num_panels() const { return static_cast<int>((depth + PANEL_DEPTH - 1) / PANEL_DEPTH); }
    int64_t num_tiles() const { return (num_rows + ROWS - 1) / ROWS; }
    const uint8_t* weights_of(int64_t expert, int64_t row) const {
        return weights + expert * expert_stride + row * weight_stride;
    }

    // num_experts where the number that was chosen is none.
    int64_t expert_of(int64_t token, int64_t slot) const {
        if (!experts) return slot * num_experts / num_slots;
        const auto* chosen = static_cast<const uint8_t*>(experts->data) + token * experts->nb[1] + slot * experts->nb[0];
        const int64_t expert = *reinterpret_cast<const int32_t*>(chosen);
        return expert >= 0 && expert < num_experts ? expert : num_experts;
    }
};

bool is_mixture(const ggml_tensor& node) { return node.op == GGML_OP_MUL_MAT_ID; }

Product product_of(const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    const int slots = is_mixture(node) ? 1 : 2, tokens = is_mixture(node) ? 2 : 1;  // the dimensions that hold them
    const auto rows_of = [&](const ggml_tensor& tensor) {
        return Rows{static_cast<uint8_t*>(tensor.data), tensor.nb[slots], tensor.nb[tokens]};
    };
    return {static_cast<const uint8_t*>(weights.data),
            weights.nb[1],
            weights.nb[2],
            weights.ne[2],
            weights.ne[1],
            weights.ne[0],
            rows_of(activations),
            activations.ne[slots] * activations.ne[3],
            rows_of(node),
            node.ne[slots] * node.ne[3],
            node.ne[tokens],
            is_mixture(node) ? node.src[2] : nullptr};
}

// The rows of results in an order in which each expert has its rows side by side. Each thread finds it out for itself:
// that takes less time than to wait for one that does it for all.
class Routing {
public:
    struct Row {
        int32_t token, slot;
    };

    explicit Routing(const Product& product) : num_slots_{product.num_slots} {
        starts_.assign(product.num_experts + 3, 0);
        rows_.resize(product.num_results());
        places_.resize(product.num_results());
        for_each_row(product, [&](int64_t expert, Row) { starts_[expert + 2]++; });
        for (size_t i = 2; i < starts_.size(); i++) starts_[i] += starts_[i - 1];
        for_each_row(product, [&](int64_t expert, Row row) {
            const int32_t place = starts_[expert + 1]++;
            rows_[place] = row;
            places_[row.token * num_slots_ + row.slot] = place;
        });
    }

    // The places of an expert's rows; behind the last expert's are rows without one.
    int64_t start(int64_t expert) const { return starts_[expert]; }
    int64_t end(int64_t expert) const { return starts_[expert + 1]; }

    Row row_at(int64_t place) const { return rows_[place]; }
    int64_t place_of(int64_t token, int64_t slot) const { return places_[token * num_slots_ + slot]; }

private:
    template <class Visit>
    static void for_each_row(const Product& product, const Visit& visit) {
        for (int32_t token = 0; token < product.num_tokens; token++)
            for (int32_t slot = 0; slot < product.num_slots; slot++)
                visit(product.expert_of(token, slot), Row{token, slot});
    }

    int64_t num_slots_;
    // One product is computed at a time in a thread, and memory is kept for the next.
    static thread_local std::vector<int32_t> starts_, places_;
    static thread_local std::vector<Row> rows_;
};

thread_local std::vector<int32_t> Routing::starts_, Routing::places_;
thread_local std::vector<Routing::Row> Routing::rows_;

// The activations of one product as bytes, panel by panel: a panel for all places, then the next panel.
template <class Format>
struct QuantisedActivations {
    Activations<Format>* rows;
    int64_t num_places;

    Activations<Format>* at(int panel, int64_t place) const { return rows + panel * num_places + place; }
    static size_t size(const Product& product) {
        return sizeof(Activations<Format>) * product.num_panels() * product.num_results();
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

// Quantises this thread's share of the activations: each row once, and copies for the other slots that it serves.
template <class Format>
void quantise_share(const Product& product, const Routing& routing, const ggml_compute_params& params,
                    const QuantisedActivations<Format>& quantised) {
    const int64_t num_rows = product.num_tokens * product.activation_slots, count = num_rows * product.num_panels();
    for (int64_t i = count * params.ith / params.nth; i < count * (params.ith + 1) / params.nth; i++) {
        const int panel = static_cast<int>(i / num_rows);
        const int64_t token = i % num_rows / product.activation_slots, first_slot = i % product.activation_slots;
        const int64_t start = int64_t{panel} * PANEL_DEPTH;
        const int depth = static_cast<int>(std::min<int64_t>(PANEL_DEPTH, product.depth - start));
        const auto place = [&](int64_t slot) -> auto& { return *quantised.at(panel, routing.place_of(token, slot)); };
        quantise_panel<Format>(product.activations.at(token, first_slot) + start, depth, place(first_slot));
        for (int64_t slot = first_slot + product.activation_slots; slot < product.num_slots;
             slot += product.activation_slots)
            place(slot) = place(first_slot);
    }
}

// What one thread does at a time: a tile of an expert's weights, times activations at some of the expert's places.
struct Piece {
    int64_t expert;
    int64_t tile;
    int64_t start, end;
};

constexpr int PIECES_FOR_EACH_THREAD = 4;  // so that a thread which is held up does not hold up all for long

// How the product is cut into pieces: tiles of each expert, and, where these are few, ranges of its places.
class Pieces {
public:
    Pieces(const Product& product, const Routing& routing, int num_threads)
        : routing_{routing}, num_experts_{product.num_experts}, num_tiles_{product.num_tiles()} {
        const int64_t wanted = int64_t{PIECES_FOR_EACH_THREAD} * num_threads;
        most_places_ = std::max<int64_t>(TILE_WIDTH / 4, divided_up(product.num_results() * num_tiles_, wanted));
    }

    // Finds a piece by its number, which may not be smaller than the last one; false: there are no more.
    bool find(int64_t number, Piece& piece) {
        for (; expert_ < num_experts_; first_number_ += num_tiles_ * num_ranges(), expert_++) {
            if (number >= first_number_ + num_tiles_ * num_ranges()) continue;
            const int64_t in_expert = number - first_number_, range = divided_up(num_places(), num_ranges());
            const int64_t start = routing_.start(expert_) + in_expert % num_ranges() * range;
            piece = {expert_, in_expert / num_ranges(), start, std::min(start + range, routing_.end(expert_))};
            return true;
        }
        return false;
    }

private:
    static int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }
    int64_t num_places() const { return routing_.end(expert_) - routing_.start(expert_); }
    int64_t num_ranges() const { return divided_up(num_places(), most_places_); }

    const Routing& routing_;
    int64_t num_experts_, num_tiles_, most_places_;
    int64_t expert_ = 0, first_number_ = 0;  // where the last piece was found: the number of its expert's first
};

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
    Tile(const Product& product, const Routing& routing, const QuantisedActivations<Format>& activations,
         const Piece& piece)
        : product_{product}, routing_{routing}, activations_{activations}, rows_{rows_of_tile(product, piece.tile)},
          weights_{product.weights_of(piece.expert, rows_.start)} {}

    // Computes the rows at `width` places from `start` on.
    void compute(int64_t start, int width, Prefetch& prefetch) {
        const PackedRows packed{weights_, product_.weight_stride, &prefetch};
        constexpr size_t PANEL_BYTES = size_t{PANEL_DEPTH} / Format::UNIT * Format::BLOCK_BYTES;
        for (int panel = 0; panel < product_.num_panels(); panel++) {
            const int64_t depth_left = product_.depth - int64_t{panel} * PANEL_DEPTH;
            const PackedRows part = packed.from(panel * PANEL_BYTES);
            if constexpr (HAS_ONE_ROW)
                if (width == 1) {
                    multiply_one_row<Format>(part, depth_left, panel == 0, activations_.at(panel, start), panel_, sums_);
                    continue;
                }
            const int num_blocks = unpack<Format>(part, depth_left, panel_);
            const UnpackedPanel<Format> unpacked{panel_, num_blocks, panel == 0};
            multiply_panel<Format>(unpacked, activations_.at(panel, start), width, sums_);
        }
        for (int row = 0; row < width; row++) {
            const auto [token, slot] = routing_.row_at(start + row);
            write_row(sums_[row], product_.results.at(token, slot) + rows_.start);
        }
    }

private:
    // A tile's rows are nearly always all new: then their number is known to the compiler.
    void write_row(const float* sums, float* result) const {
        const int64_t num_old = rows_.first_new - rows_.start;
        if (num_old == 0) std::copy_n(sums, ROWS, result);
        else std::copy(sums + num_old, sums + ROWS, result + num_old);
    }

    const Product& product_;
    const Routing& routing_;
    const QuantisedActivations<Format>& activations_;
    TileRows rows_;
    const uint8_t* weights_;
    typename Format::Panel panel_;
    alignas(64) Sums sums_;
};

// Computes a piece while the weights of the next one are brought nearer.
template <class Format>
void compute_piece(const Product& product, const Routing& routing, const QuantisedActivations<Format>& activations,
                   const Piece& piece, const Piece& next) {
    Tile<Format> tile{product, routing, activations, piece};
    Prefetch prefetch{product.weights_of(next.expert, rows_of_tile(product, next.tile).start),
                      ROWS * product.weight_stride};
    for (int64_t start = piece.start; start < piece.end; start += TILE_WIDTH)
        tile.compute(start, static_cast<int>(std::min<int64_t>(TILE_WIDTH, piece.end - start)), prefetch);
}

// An expert that there is not gives zeros. (ggml asks for none, and does not look.)
void clear_rows_without_expert(const Product& product, const Routing& routing) {
    for (int64_t place = routing.start(product.num_experts); place < routing.end(product.num_experts); place++) {
        const auto [token, slot] = routing.row_at(place);
        std::fill_n(product.results.at(token, slot), product.num_rows, 0.0F);
    }
}

template <class Format>
void compute_as(const ggml_compute_params& params, const Product& product) {
    const Routing routing{product};
    uint8_t* room = shared_room(params, QuantisedActivations<Format>::size(product));
    const QuantisedActivations<Format> activations{reinterpret_cast<Activations<Format>*>(room), product.num_results()};
    if (params.ith == 0) {
        ggml().chunk_set(params.threadpool, params.nth);
        clear_rows_without_expert(product, routing);
    }
    quantise_share(product, routing, params, activations);
    Pieces pieces{product, routing, params.nth};
    Piece piece, next;
    bool is_left = pieces.find(params.ith, piece);
    ggml().barrier(params.threadpool);
    // The next piece is drawn before this one is computed, so that its weights can be brought nearer.
    for (; is_left; piece = next) {
        next = piece;
        is_left = pieces.find(ggml().chunk_add(params.threadpool, 1), next);
        compute_piece(product, routing, activations, piece, next);
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
        case GGML_TYPE_IQ4_NL: return compute_as<IQ4_NL>;
        case GGML_TYPE_MXFP4: return compute_as<MXFP4>;
        case GGML_TYPE_Q2_K: return compute_as<Q2_K>;
        case GGML_TYPE_Q3_K: return compute_as<Q3_K>;
        case GGML_TYPE_Q4_K: return compute_as<Q4_K>;
        case GGML_TYPE_Q5_K: return compute_as<Q5_K>;
        case GGML_TYPE_Q6_K: return compute_as<Q6_K>;
        case GGML_TYPE_IQ4_XS: return compute_as<IQ4_XS>;
        case GGML_TYPE_IQ2_XXS: return compute_as<IQ2_XXS>;
        case GGML_TYPE_IQ2_XS: return compute_as<IQ2_XS>;
        case GGML_TYPE_IQ2_S: return compute_as<IQ2_S>;
        case GGML_TYPE_IQ3_XXS: return compute_as<IQ3_XXS>;
        case GGML_TYPE_IQ3_S: return compute_as<IQ3_S>;
        default: return nullptr;
    }
}

// Whether the fourth dimension goes on with the steps of the third.
bool goes_on(const ggml_tensor& tensor) {
    return tensor.ne[3] == 1 || tensor.nb[3] == tensor.ne[2] * tensor.nb[2];
}

// A fourth dimension can be slots as the third is, if all slots have the same weights.
bool has_slots_only(const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    return weights.ne[3] == 1 && (node.ne[3] == 1 || (weights.ne[2] == 1 && goes_on(activations) && goes_on(node)));
}

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    const bool has_hint = node.op_params[1] != 0;
    return HAS_DOT && !params.use_ref && !has_hint && compute_for(weights.type) && has_slots_only(node) &&
           activations.type == GGML_TYPE_F32 && activations.nb[0] == sizeof(float) && node.nb[0] == sizeof(float) &&
           weights.ne[1] >= ROWS && params.wsize >= sizeof(void*);
}

void compute(const ggml_compute_params& params, ggml_tensor& node) {
    compute_for(node.src[0]->type)(params, product_of(node));
}

}  // namespace products

// For `kernels/library.py`: whether products with weights of this type are computed here.
extern "C" bool ocs_multiplies(int type) {
    return products::HAS_DOT && products::compute_for(static_cast<ggml_type>(type)) != nullptr;
}
