#include "products.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "amx.hpp"
#include "one_row.hpp"
#include "tile_products.hpp"

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
    const float* activations_of(int64_t token, int64_t slot) const { return activations.at(token, slot % activation_slots); }
    int num_panels() const { return static_cast<int>((depth + PANEL_DEPTH - 1) / PANEL_DEPTH); }
    int64_t num_tiles() const { return (num_rows + ROWS - 1) / ROWS; }
    const uint8_t* weights_of(int64_t expert, int64_t row) const {
        return weights + expert * expert_stride + row * weight_stride;
    }

    // num_experts where the chosen number is invalid.
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

// Order of the rows of results in which each expert has its rows side by side. Each thread computes it itself, which
// takes less time than to wait for a thread that does it for all.
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
    int64_t count(int64_t expert) const { return end(expert) - start(expert); }

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
// Experts with `tile_rows` rows or more need none.
template <class Format>
void quantise_share(const Product& product, const Routing& routing, const ggml_compute_params& params,
                    const QuantisedActivations<Format>& quantised, int64_t tile_rows) {
    const int64_t num_rows = product.num_tokens * product.activation_slots, count = num_rows * product.num_panels();
    for (int64_t i = count * params.ith / params.nth; i < count * (params.ith + 1) / params.nth; i++) {
        const int panel = static_cast<int>(i / num_rows);
        const int64_t token = i % num_rows / product.activation_slots, first_slot = i % product.activation_slots;
        const int64_t start = int64_t{panel} * PANEL_DEPTH;
        const int depth = static_cast<int>(std::min<int64_t>(PANEL_DEPTH, product.depth - start));
        const auto place = [&](int64_t slot) -> auto& { return *quantised.at(panel, routing.place_of(token, slot)); };
        const Activations<Format>* first = nullptr;
        for (int64_t slot = first_slot; slot < product.num_slots; slot += product.activation_slots) {
            if (routing.count(product.expert_of(token, slot)) >= tile_rows) continue;
            if (first) place(slot) = *first;
            else quantise_panel<Format>(product.activations.at(token, first_slot) + start, depth, place(slot));
            first = &place(slot);
        }
    }
}

// Unit of work of a thread: a tile of an expert's weights, times activations at some of the expert's places.
struct Piece {
    int64_t expert;
    int64_t tile;
    int64_t start, end;
    bool is_for_tiles;
};

constexpr int PIECES_FOR_EACH_THREAD = 4;  // so that a delayed thread does not delay all for long

int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

// Division of experts with `least` to `most` rows into pieces: tiles of `tile_rows` weights, and, where these are few,
// ranges of places, each a multiple of `unit` from the expert's first.
struct Cut {
    int64_t least, most;
    int64_t tile_rows;
    int64_t least_places, unit;
    bool is_for_tiles;
};

class Pieces {
public:
    Pieces(const Product& product, const Routing& routing, int num_threads, const Cut& cut)
        : routing_{routing}, cut_{cut}, num_experts_{product.num_experts},
          num_tiles_{divided_up(product.num_rows, cut.tile_rows)} {
        const int64_t wanted = int64_t{PIECES_FOR_EACH_THREAD} * num_threads;
        const int64_t places = std::max(cut.least_places, divided_up(product.num_results() * num_tiles_, wanted));
        most_places_ = divided_up(places, cut.unit) * cut.unit;
    }

    // Finds a piece by its number, which may not be smaller than the last one. Returns false at the end.
    bool find(int64_t number, Piece& piece) {
        for (; expert_ < num_experts_; first_number_ += num_tiles_ * num_ranges(), expert_++) {
            if (number >= first_number_ + num_tiles_ * num_ranges()) continue;
            const int64_t in_expert = number - first_number_;
            const int64_t range = divided_up(divided_up(num_places(), num_ranges()), cut_.unit) * cut_.unit;
            const int64_t start = routing_.start(expert_) + in_expert % num_ranges() * range;
            const int64_t end = std::min(start + range, routing_.end(expert_));
            piece = {expert_, in_expert / num_ranges(), start, end, cut_.is_for_tiles};
            return true;
        }
        return false;
    }

    // Number of pieces, after one was not found.
    int64_t count() const { return first_number_; }

private:
    int64_t num_places() const {
        const int64_t count = routing_.count(expert_);
        return count >= cut_.least && count <= cut_.most ? count : 0;
    }
    int64_t num_ranges() const { return divided_up(num_places(), most_places_); }

    const Routing& routing_;
    const Cut cut_;
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
    // A tile's rows are nearly always all new. Then the compiler knows their number.
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

// Computes a piece while the weights of the next one are prefetched.
template <class Format>
void compute_piece(const Product& product, const Routing& routing, const QuantisedActivations<Format>& activations,
                   const Piece& piece, const Piece& next) {
    Tile<Format> tile{product, routing, activations, piece};
    Prefetch prefetch{product.weights_of(next.expert, rows_of_tile(product, next.tile).start),
                      ROWS * product.weight_stride};
    for (int64_t start = piece.start; start < piece.end; start += TILE_WIDTH)
        tile.compute(start, static_cast<int>(std::min<int64_t>(TILE_WIDTH, piece.end - start)), prefetch);
}

// An expert that does not exist gives zeros. (ggml never selects one, and does not check.)
void clear_rows_without_expert(const Product& product, const Routing& routing) {
    for (int64_t place = routing.start(product.num_experts); place < routing.end(product.num_experts); place++) {
        const auto [token, slot] = routing.row_at(place);
        std::fill_n(product.results.at(token, slot), product.num_rows, 0.0F);
    }
}

// Functions of products with weights of a type, as bytes.
struct BytesKernel {
    size_t (*size)(const Product&);
    void (*quantise)(const Product&, const Routing&, const ggml_compute_params&, uint8_t* room, int64_t tile_rows);
    void (*compute)(const Product&, const Routing&, uint8_t* room, const Piece&, const Piece& next);
};

template <class Format>
const BytesKernel* bytes_kernel() {
    static constexpr auto activations = [](const Product& product, uint8_t* room) {
        return QuantisedActivations<Format>{reinterpret_cast<Activations<Format>*>(room), product.num_results()};
    };
    static constexpr BytesKernel kernel{
        QuantisedActivations<Format>::size,
        [](const Product& product, const Routing& routing, const ggml_compute_params& params, uint8_t* room, int64_t tile_rows) {
            quantise_share(product, routing, params, activations(product, room), tile_rows);
        },
        [](const Product& product, const Routing& routing, uint8_t* room, const Piece& piece, const Piece& next) {
            compute_piece(product, routing, activations(product, room), piece, next);
        }};
    return &kernel;
}

const BytesKernel* bytes_kernel_of(ggml_type type) {
    if (!HAS_DOT) return nullptr;
    switch (type) {
        case GGML_TYPE_Q4_0: return bytes_kernel<Q4_0>();
        case GGML_TYPE_Q4_1: return bytes_kernel<Q4_1>();
        case GGML_TYPE_Q5_0: return bytes_kernel<Q5_0>();
        case GGML_TYPE_Q5_1: return bytes_kernel<Q5_1>();
        case GGML_TYPE_Q8_0: return bytes_kernel<Q8_0>();
        case GGML_TYPE_IQ4_NL: return bytes_kernel<IQ4_NL>();
        case GGML_TYPE_MXFP4: return bytes_kernel<MXFP4>();
        case GGML_TYPE_Q2_K: return bytes_kernel<Q2_K>();
        case GGML_TYPE_Q3_K: return bytes_kernel<Q3_K>();
        case GGML_TYPE_Q4_K: return bytes_kernel<Q4_K>();
        case GGML_TYPE_Q5_K: return bytes_kernel<Q5_K>();
        case GGML_TYPE_Q6_K: return bytes_kernel<Q6_K>();
        case GGML_TYPE_IQ4_XS: return bytes_kernel<IQ4_XS>();
        case GGML_TYPE_IQ2_XXS: return bytes_kernel<IQ2_XXS>();
        case GGML_TYPE_IQ2_XS: return bytes_kernel<IQ2_XS>();
        case GGML_TYPE_IQ2_S: return bytes_kernel<IQ2_S>();
        case GGML_TYPE_IQ3_XXS: return bytes_kernel<IQ3_XXS>();
        case GGML_TYPE_IQ3_S: return bytes_kernel<IQ3_S>();
        default: return nullptr;
    }
}

// Returns the kernel for few rows, if it can multiply the node's weights.
const BytesKernel* bytes_kernel_of(const ggml_tensor& node) {
    return node.src[0]->ne[1] >= ROWS ? bytes_kernel_of(node.src[0]->type) : nullptr;
}

constexpr int64_t NEVER = INT64_MAX;
constexpr int64_t USUAL_TILE_ROWS = 16;  // until it is measured
std::atomic<int64_t> tile_rows[64];      // by type: rows from which tiles are faster; 0: the usual number

int64_t least_tile_rows(const ggml_tensor& node) {
    const int64_t rows = tile_rows[node.src[0]->type].load(std::memory_order_relaxed);
    return rows == 0 ? USUAL_TILE_ROWS : rows;
}

// The experts that tiles multiply, and where their activations are packed.
class TilePart {
public:
    TilePart(const Product& product, const Routing& routing, const tiles::Kernel* kernel, int64_t least_rows)
        : product_{product}, routing_{routing}, kernel_{kernel}, least_rows_{least_rows},
          block_bytes_{kernel ? kernel->block_bytes : 0} {
        first_blocks_.assign(product.num_experts + 1, 0);
        int64_t num_experts = 0;
        for (int64_t expert = 0; expert < product.num_experts; expert++) {
            const int64_t blocks = routing.count(expert) >= least_rows ? tiles::blocks_of(routing.count(expert)) : 0;
            first_blocks_[expert + 1] = first_blocks_[expert] + blocks;
            num_experts += blocks > 0;
        }
        num_outs_ = num_experts * product.num_rows;
    }

    int64_t num_blocks() const { return first_blocks_.back(); }
    size_t size() const { return num_blocks() * (product_.num_panels() * block_bytes_ + sizeof(float) * tiles::BLOCK_ROWS); }
    tiles::Packed packed(uint8_t* room) const {
        uint8_t* factors = room + num_blocks() * product_.num_panels() * block_bytes_;
        return {room, reinterpret_cast<float*>(factors), num_blocks(), block_bytes_};
    }

    Cut cut(int num_threads) const {
        const int64_t outs = divided_up(num_outs_, int64_t{PIECES_FOR_EACH_THREAD} * num_threads * tiles::OUTS) * tiles::OUTS;
        const int64_t least = 2 * tiles::BLOCK_ROWS;
        return {least_rows_, NEVER, std::clamp<int64_t>(outs, tiles::OUTS, tiles::MOST_OUTS), least, least, true};
    }

    // Packs this thread's share: some of the panels of a block at a time where there are more threads than blocks.
    void pack_share(const ggml_compute_params& params, const tiles::Packed& packed) const {
        const int64_t panels = product_.num_panels(), parts = std::min(panels, divided_up(params.nth, std::max<int64_t>(1, num_blocks())));
        const int64_t count = num_blocks() * parts;
        int64_t expert = 0;
        for (int64_t i = count * params.ith / params.nth; i < count * (params.ith + 1) / params.nth; i++) {
            const int64_t block = i / parts, part = i % parts;
            while (first_blocks_[expert + 1] <= block) expert++;
            tiles::Packing packing{{}, 0, product_.depth, panels * part / parts, panels * (part + 1) / parts, packed, block};
            const int64_t start = routing_.start(expert) + (block - first_blocks_[expert]) * tiles::BLOCK_ROWS;
            packing.count = static_cast<int>(std::clamp<int64_t>(routing_.end(expert) - start, 0, tiles::BLOCK_ROWS));
            for (int row = 0; row < packing.count; row++) {
                const auto [token, slot] = routing_.row_at(start + row);
                packing.rows[row] = product_.activations_of(token, slot);
            }
            kernel_->pack(packing);
        }
    }

    void compute(const Piece& piece, int64_t num_outs, const tiles::Packed& packed) const {
        static thread_local std::vector<float*> results;
        results.clear();
        for (int64_t place = piece.start; place < piece.end; place++) {
            const auto [token, slot] = routing_.row_at(place);
            results.push_back(product_.results.at(token, slot));
        }
        const int64_t first = first_blocks_[piece.expert] + (piece.start - routing_.start(piece.expert)) / tiles::BLOCK_ROWS;
        const int64_t begin = piece.tile * num_outs, end = std::min(begin + num_outs, product_.num_rows);
        kernel_->multiply(*kernel_, {product_.weights_of(piece.expert, 0), product_.weight_stride, product_.num_rows, product_.depth,
                                   begin, end, packed, first, piece.end - piece.start, results.data()});
    }

private:
    const Product& product_;
    const Routing& routing_;
    const tiles::Kernel* kernel_;
    int64_t least_rows_, block_bytes_, num_outs_;
    static thread_local std::vector<int64_t> first_blocks_;  // of each expert, and the end
};

thread_local std::vector<int64_t> TilePart::first_blocks_;

// Packed activations of a node, for later nodes with the same activations: K and V after Q, up after gate.
struct PackedRoom {
    struct Key {
        const ggml_tensor *activations, *experts;
        void (*pack)(const tiles::Packing&);
        const BytesKernel* bytes;
        int64_t tile_rows;

        bool operator==(const Key& other) const {
            return activations == other.activations && experts == other.experts && pack == other.pack &&
                   bytes == other.bytes && tile_rows == other.tile_rows;
        }
    };
    struct alignas(64) Line {
        uint8_t bytes[64];
    };
    std::optional<Key> key;
    std::vector<Line> lines;
};

// Packed activations of the thread that computes a graph.
struct Graph {
    bool is_computed = false;
    std::array<PackedRoom, 2> rooms;  // types of Q and V may differ
    int next = 0;

    struct Found {
        uint8_t* room;
        bool is_packed;
    };
    Found find(const PackedRoom::Key& key, size_t size) {
        for (PackedRoom& room : rooms)
            if (room.key == key) return {room.lines[0].bytes, true};
        PackedRoom& room = rooms[next];
        next = 1 - next;
        room.key = is_computed ? std::optional{key} : std::nullopt;
        const size_t count = divided_up(size, sizeof(PackedRoom::Line));
        if (room.lines.size() < count) room.lines = {}, room.lines.resize(count);
        return {room.lines[0].bytes, false};
    }
};
thread_local Graph graph;

// Experts with `tile_rows` rows or more by tiles, the others as bytes.
void compute_product(const ggml_compute_params& params, const ggml_tensor& node, int64_t tile_rows) {
    const Product product = product_of(node);
    const Routing routing{product};
    const BytesKernel* bytes = bytes_kernel_of(node);
    const tiles::Kernel* tile_kernel = tiles::kernel_of(node.src[0]->type);
    const TilePart part{product, routing, tile_kernel, tile_rows};
    Graph::Found found{};
    if (part.num_blocks() == 0) found.room = shared_room(params, bytes->size(product));
    else {
        auto& published = *static_cast<Graph::Found*>(params.wdata);
        if (params.ith == 0)
            published = graph.find({node.src[1], product.experts, tile_kernel->pack, bytes, tile_rows},
                                   part.size() + (bytes ? bytes->size(product) : 0));
        ggml().barrier(params.threadpool);
        found = published;
    }
    const tiles::Packed packed = part.packed(found.room);
    uint8_t* quantised = found.room + part.size();
    if (params.ith == 0) {
        ggml().chunk_set(params.threadpool, params.nth);
        clear_rows_without_expert(product, routing);
    }
    if (!found.is_packed) {
        part.pack_share(params, packed);
        if (bytes) bytes->quantise(product, routing, params, quantised, tile_rows);
    }
    const Cut cut = part.cut(params.nth);
    Pieces for_tiles{product, routing, params.nth, cut};
    Pieces as_bytes{product, routing, params.nth, {1, tile_rows - 1, ROWS, TILE_WIDTH / 4, 1, false}};
    const auto find = [&](int64_t number, Piece& piece) {
        return for_tiles.find(number, piece) || as_bytes.find(number - for_tiles.count(), piece);
    };
    Piece piece, next;
    bool is_left = find(params.ith, piece);
    if (part.num_blocks() > 0) amx::configure();
    ggml().barrier(params.threadpool);
    // The next piece is drawn before this one is computed, so that its weights can be prefetched.
    for (; is_left; piece = next) {
        next = piece;
        is_left = find(ggml().chunk_add(params.threadpool, 1), next);
        if (piece.is_for_tiles) part.compute(piece, cut.tile_rows, packed);
        else bytes->compute(product, routing, quantised, piece, next);
    }
    if (part.num_blocks() > 0) amx::release();
}

// True if the fourth dimension continues with the steps of the third.
bool goes_on(const ggml_tensor& tensor) {
    return tensor.ne[3] == 1 || tensor.nb[3] == tensor.ne[2] * tensor.nb[2];
}

// A fourth dimension can be slots as the third is, if all slots have the same weights.
bool has_slots_only(const ggml_tensor& node) {
    const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
    return weights.ne[3] == 1 && (node.ne[3] == 1 || (weights.ne[2] == 1 && goes_on(activations) && goes_on(node)));
}

bool is_product(const ggml_compute_params& params, const ggml_tensor& node) {
    const ggml_tensor& activations = *node.src[1];
    const bool has_hint = node.op_params[1] != 0;
    return !params.use_ref && !has_hint && has_slots_only(node) && activations.type == GGML_TYPE_F32 &&
           activations.nb[0] == sizeof(float) && node.nb[0] == sizeof(float) && params.wsize >= sizeof(Graph::Found);
}

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    return is_product(params, node) && bytes_kernel_of(node);
}

void compute(const ggml_compute_params& params, ggml_tensor& node) { compute_product(params, node, NEVER); }

// Weights of 16 bits, or with few rows, have no other kernel here: their experts must have enough rows on average.
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node) {
    const ggml_tensor& weights = *node.src[0];
    if (!is_product(params, node) || !tiles::kernel_of(weights.type)) return false;
    const bool are_stored = weights.op == GGML_OP_NONE && !weights.view_src;  // not the keys of an attention
    const int64_t num_results = node.ne[1] * node.ne[2] * node.ne[3], num_experts = bytes_kernel_of(node) ? 1 : weights.ne[2];
    const int64_t rows = is_mixture(node) ? num_results / num_experts : node.ne[1];
    return are_stored && rows >= least_tile_rows(node);
}

void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& node) {
    compute_product(params, node, bytes_kernel_of(node) ? least_tile_rows(node) : 1);
}

void begin_graph() {
    graph.is_computed = true;
    for (PackedRoom& room : graph.rooms) room.key.reset();
}

void end_graph() { graph.is_computed = false; }

}  // namespace products

// For `kernels/library.py`: whether products with weights of this type are computed here, by which kernel.
extern "C" {

bool ocs_multiplies(int type) { return products::bytes_kernel_of(static_cast<ggml_type>(type)) != nullptr; }

bool ocs_multiplies_by_tiles(int type) { return tiles::kernel_of(static_cast<ggml_type>(type)) != nullptr; }

// Least rows of an expert; 0: the usual number; negative: never.
void ocs_use_tiles_from(int type, int rows) { products::tile_rows[type] = rows < 0 ? products::NEVER : rows; }

const char* ocs_why_no_tiles() { return amx::why_no_tiles(); }
}
