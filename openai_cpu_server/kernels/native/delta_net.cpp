// The gated delta rule, token by token: a state S (keys x values) decays, gives what it has stored under a key, and
// stores the difference to the value there; the query reads it. Columns of S are rows of ggml's state and
// independent, so they are computed in any order and by any thread. Prompts are computed in chunks where there
// are tiles; a chunked form by vectors has no fewer multiplications for keys of 128.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "delta_net_tiles.hpp"
#include "recurrent.hpp"
#include "simd.hpp"

namespace recurrent {
namespace {

using namespace simd;

enum Source { QUERIES, KEYS, VALUES, GATES, BETAS, STATE };
constexpr int BLOCK = 32;             // rows of a state that are computed at a time: they stay in the nearest cache
constexpr int TILE = 16;              // tokens that are prepared once for all rows
constexpr int PIECES = 4;             // for each thread, if there are enough heads
constexpr int GROUP = 4;              // chunks that are prepared at a time
constexpr int PASS = REGISTERS / 8;   // rows that registers hold the sums of
constexpr int WIDTH_MAX = 256;

const float* at(const ggml_tensor& tensor, int64_t i1, int64_t i2, int64_t i3) {
    const size_t offset = i1 * tensor.nb[1] + i2 * tensor.nb[2] + i3 * tensor.nb[3];
    return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + offset);
}

// Returns the token behind the last chunk. Short chunks are not faster, and states within a chunk are not computed.
int64_t chunks_end(int64_t num_tokens, int64_t num_kept) {
    const int64_t most = num_tokens - (num_kept > 1 ? num_kept : 0), rest = most % CHUNK;
    return most < amx::TILE_ROWS ? 0 : rest < amx::TILE_ROWS ? most - rest : most;
}

// Inputs of a token that all rows of a state need.
struct Token {
    alignas(64) float key[WIDTH_MAX];
    float read_key[WIDTH_MAX];    // with which the state before decay is read,
    float read_query[WIDTH_MAX];  // scaled
    float decays[WIDTH_MAX];      // of columns, where each has its own
    const float* value;
    float* result;
    float decay;
    float beta;
    float stored;  // key times scaled query: share of the stored value that the query reads
};

// For each row of a block: the difference to the value stored under the key, and the result of the query.
struct Sums {
    floats by_key[BLOCK / LANES][LANES], by_query[BLOCK / LANES][LANES];
    alignas(64) float differences[BLOCK];
};

// Adds the value of a token, then reads with the next token's key and query, as requested, for all rows of a block.
template <bool STORES, bool READS, bool HAS_DECAYS>
void pass(const float* from, float* to, int width, const Token& stored, const Token& read, Sums& sums) {
    const floats decay = splat(stored.decay);
    for (int first = 0; first < BLOCK; first += PASS, from += PASS * width, to += PASS * width) {
        floats difference[PASS], by_key[PASS] = {}, by_query[PASS] = {};
        for (int row = 0; row < PASS; ++row) difference[row] = STORES ? splat(sums.differences[first + row]) : floats{};
        for (int i = 0; i < width; i += LANES) {
            const floats key = STORES ? load(stored.key + i) : floats{};
            const floats decays = STORES && HAS_DECAYS ? load(stored.decays + i) : decay;
            const floats read_key = READS ? load(read.read_key + i) : floats{};
            const floats read_query = READS ? load(read.read_query + i) : floats{};
            for (int row = 0; row < PASS; ++row) {
                floats state = load(from + row * width + i);
                if (STORES) {
                    state = multiply_add(difference[row], key, state * decays);
                    store(to + row * width + i, state);
                }
                if (READS) {
                    by_key[row] = multiply_add(state, read_key, by_key[row]);
                    by_query[row] = multiply_add(state, read_query, by_query[row]);
                }
            }
        }
        for (int row = 0; READS && row < PASS; ++row) {
            sums.by_key[first / LANES][first % LANES + row] = by_key[row];
            sums.by_query[first / LANES][first % LANES + row] = by_query[row];
        }
    }
}

class DeltaNet : public Task {
public:
    DeltaNet(const ggml_tensor& node, States states, bool by_tiles)
        : Task{by_tiles},
          node_{node},
          states_{std::move(states)},
          width_{static_cast<int>(node.src[VALUES]->ne[0])},
          heads_{node.src[VALUES]->ne[1]},
          num_tokens_{node.src[VALUES]->ne[2]},
          num_sequences_{node.src[VALUES]->ne[3]} {}

    void compute(const ggml_compute_params& params) const override {
        const bool has_decays = node_.src[GATES]->ne[0] > 1;
        const int64_t heads = num_sequences_ * heads_, blocks = width_ / BLOCK;
        const int64_t pieces = by_tiles ? params.nth : PIECES * params.nth;  // each prepares its chunks
        const int64_t parts = std::clamp<int64_t>((pieces + heads - 1) / heads, 1, blocks);
        if (params.ith == 0) ggml().chunk_set(params.threadpool, params.nth);
        ggml().barrier(params.threadpool);
        if (by_tiles) amx::configure();
        for (int64_t i = params.ith; i < heads * parts; i = ggml().chunk_add(params.threadpool, 1)) {
            const int64_t head = i / parts % heads_, sequence = i / parts / heads_, part = i % parts;
            const Piece piece{sequence, head, part * blocks / parts, (part + 1) * blocks / parts};
            const int64_t first = by_tiles ? compute_chunks(piece) : 0;
            if (has_decays) compute_tokens<true>(piece, first);
            else compute_tokens<false>(piece, first);
        }
        if (by_tiles) amx::release();
    }

private:
    struct Piece {
        int64_t sequence, head, first_block, end_block;
    };

    // Returns the token behind the chunks. Tokens whose states are kept, or too few for a chunk, remain.
    int64_t compute_chunks(const Piece& piece) const {
        static thread_local std::vector<Chunk> chunks(GROUP);
        const int64_t last = chunks_end(num_tokens_, states_.num_kept);
        for (int64_t start = 0; start < last; start += GROUP * CHUNK) {
            int count = 0;
            for (int64_t first = start; first < last && count < GROUP; first += CHUNK, ++count)
                prepare(chunks[count], piece.sequence, piece.head, first, std::min(last - first, int64_t{CHUNK}));
            for (int64_t block = piece.first_block; block < piece.end_block; ++block) {
                const Place place = place_of(piece, block, start);
                for (int i = 0; i < count; ++i) add(chunks[i], block * BLOCK, width_, i == 0 ? place.from : place.to, place.to);
            }
        }
        return last;
    }

    template <bool HAS_DECAYS>
    void compute_tokens(const Piece& piece, int64_t first) const {
        Token tokens[TILE];
        for (int64_t start = first; start < num_tokens_; start += TILE) {
            const int count = static_cast<int>(std::min<int64_t>(TILE, num_tokens_ - start));
            for (int i = 0; i < count; ++i) prepare<HAS_DECAYS>(tokens[i], piece.sequence, piece.head, start + i);
            for (int64_t block = piece.first_block; block < piece.end_block; ++block) {
                const Place place = place_of(piece, block, start);
                compute_block<HAS_DECAYS>(tokens, count, num_tokens_ - start, block * BLOCK, place.from, place.to);
            }
        }
    }

    struct Place {
        const float* from;
        float* to;
    };
    Place place_of(const Piece& piece, int64_t block, int64_t token) const {
        const int64_t offset = (piece.head * width_ + block * BLOCK) * width_;
        float* const to = states_.to.row(piece.sequence) + offset;
        return {token == 0 ? states_.from[piece.sequence] + offset : to, to};
    }

    void prepare(Chunk& to, int64_t sequence, int64_t head, int64_t first, int64_t count) const {
        Inputs inputs[CHUNK];
        to.count = static_cast<int>(count);
        for (int i = 0; i < CHUNK; ++i) to.betas[i] = i < count ? *at(*node_.src[BETAS], head, first + i, sequence) : 0;
        for (int i = 0; i < to.count; ++i) {
            inputs[i] = {query_of(sequence, head, first + i), key_of(sequence, head, first + i),
                         *at(*node_.src[GATES], head, first + i, sequence)};
            to.values[i] = at(*node_.src[VALUES], head, first + i, sequence);
            to.results[i] = result_of(sequence, head, first + i);
        }
        Preparation{to, inputs, width_};
    }

    // Computes some of the `left` remaining tokens. A token's value is added when the next one reads, so that the state is
    // read once for each token.
    template <bool HAS_DECAYS>
    void compute_block(const Token* tokens, int count, int64_t left, int64_t row, const float* from, float* to) const {
        Sums sums;
        bool is_stored = true;
        for (int i = 0; i < count; ++i) {
            const Token& token = tokens[i];
            if (is_stored) pass<false, true, HAS_DECAYS>(from, to, width_, token, token, sums);
            else pass<true, true, HAS_DECAYS>(from, to, width_, tokens[i - 1], token, sums), from = to;
            answer(token, row, sums);
            const int64_t earlier = left - 1 - i;
            is_stored = earlier < states_.num_kept || i + 1 == count;
            if (!is_stored) continue;
            pass<true, false, HAS_DECAYS>(from, to, width_, token, token, sums);
            from = to;
            if (earlier > 0 && earlier < states_.num_kept)
                std::memcpy(reinterpret_cast<char*>(to) + earlier * states_.earlier, to, sizeof(float) * BLOCK * width_);
        }
    }

    template <bool HAS_DECAYS>
    void prepare(Token& to, int64_t sequence, int64_t head, int64_t token) const {
        const float *query = query_of(sequence, head, token), *key = key_of(sequence, head, token);
        const float* gates = at(*node_.src[GATES], head, token, sequence);
        const floats scale = splat(1.0F / std::sqrt(static_cast<float>(width_)));
        to.decay = HAS_DECAYS ? 1.0F : std::exp(gates[0]);
        floats stored{};
        for (int i = 0; i < width_; i += LANES) {
            const floats keys = load(key + i), queries = scale * load(query + i);
            const floats decays = HAS_DECAYS ? simd::exp(load(gates + i)) : splat(to.decay);
            if (HAS_DECAYS) store(to.decays + i, decays);
            store(to.key + i, keys);
            store(to.read_key + i, decays * keys);
            store(to.read_query + i, decays * queries);
            stored = multiply_add(keys, queries, stored);
        }
        to.stored = total(stored);
        to.beta = *at(*node_.src[BETAS], head, token, sequence);
        to.value = at(*node_.src[VALUES], head, token, sequence);
        to.result = result_of(sequence, head, token);
    }

    const float* query_of(int64_t sequence, int64_t head, int64_t token) const {
        const ggml_tensor& q = *node_.src[QUERIES];
        return at(q, head % q.ne[1], token, sequence * q.ne[3] / num_sequences_);
    }
    const float* key_of(int64_t sequence, int64_t head, int64_t token) const {
        const ggml_tensor& k = *node_.src[KEYS];
        return at(k, head % k.ne[1], token, sequence * k.ne[3] / num_sequences_);
    }
    float* result_of(int64_t sequence, int64_t head, int64_t token) const {
        return static_cast<float*>(node_.data) + ((sequence * num_tokens_ + token) * heads_ + head) * width_;
    }

    static void answer(const Token& token, int64_t row, Sums& sums) {
        for (int i = 0; i < BLOCK / LANES; ++i) {
            const floats value = load(token.value + row + i * LANES);
            const floats difference = splat(token.beta) * (value - totals(sums.by_key[i]));
            store(sums.differences + i * LANES, difference);
            store(token.result + row + i * LANES, multiply_add(difference, splat(token.stored), totals(sums.by_query[i])));
        }
    }

    const ggml_tensor& node_;
    States states_;
    int width_;
    int64_t heads_, num_tokens_, num_sequences_;
};

bool has_chunks(const ggml_tensor& node) {
    return node.src[GATES]->ne[0] == 1 && chunks_end(node.src[VALUES]->ne[2], node.op_params[0]) > 0;
}

bool has_float_rows(const ggml_tensor& tensor) {
    return tensor.type == GGML_TYPE_F32 && tensor.nb[0] == sizeof(float);
}

}  // namespace

bool is_known_delta_net(const ggml_tensor& node) {
    for (int i = QUERIES; i <= STATE; ++i)
        if (!node.src[i] || !has_float_rows(*node.src[i])) return false;
    const int64_t width = node.src[VALUES]->ne[0], gates = node.src[GATES]->ne[0];
    return width % BLOCK == 0 && width <= WIDTH_MAX && node.src[KEYS]->ne[0] == width && (gates == 1 || gates == width);
}

States states_of_delta_net(const ggml_tensor& node) {
    const ggml_tensor &values = *node.src[VALUES], &state = *node.src[STATE];
    const int64_t sequences = values.ne[3], results = values.ne[0] * values.ne[1] * values.ne[2] * sequences;
    const size_t row = sizeof(float) * values.ne[0] * values.ne[0] * values.ne[1];
    States states;
    for (int64_t i = 0; i < sequences; ++i) states.from.push_back(at(state, 0, 0, i));
    states.to = {static_cast<char*>(node.data) + sizeof(float) * results, row};
    states.earlier = row * sequences;
    states.num_kept = node.op_params[0];
    return states;
}

std::unique_ptr<Task> delta_net(const ggml_tensor& node, States states, bool by_tiles) {
    return std::make_unique<DeltaNet>(node, std::move(states), by_tiles && has_chunks(node));
}

}  // namespace recurrent
