// Recurrent layers: each sequence has a state, which every token changes. ggml gathers the states of a step's
// sequences, computes with the copies, and copies the results back; here a state is read and written where it lies.
// The results of a sequence do not depend on other sequences of the step, nor on how its tokens are cut into steps.
#pragma once

#include <memory>
#include <vector>

#include "ggml_api.hpp"

namespace recurrent {

// Task that replaces a node of a graph, computed by all threads of the graph together.
class Task {
public:
    explicit Task(bool by_tiles = false) : by_tiles{by_tiles} {}
    virtual ~Task() = default;
    // Computes this thread's part.
    virtual void compute(const ggml_compute_params& params) const = 0;

    const bool by_tiles;  // of AMX
};

// Rows of floats, one for each sequence.
struct Rows {
    char* data = nullptr;
    size_t stride = 0;  // bytes

    float* row(int64_t sequence) const { return reinterpret_cast<float*>(data + sequence * stride); }
};

// Places of the states of a step's sequences, to read and to write. They differ, except for a sequence whose state
// stays in its place.
struct States {
    std::vector<const float*> from;  // one for each sequence
    Rows to;                         // after the last token
    size_t earlier = 0;              // bytes from there to the states one token earlier, and so on
    int64_t num_kept = 1;            // number of written states: the last, the one before it and so on
};

// A node of `ggml_gated_delta_net`, whose states may be elsewhere than it says.
bool is_known_delta_net(const ggml_tensor& node);
States states_of_delta_net(const ggml_tensor& node);
// `by_tiles`: where there are tokens enough. Then results depend on where a prompt is cut, by rounding to bf16.
std::unique_ptr<Task> delta_net(const ggml_tensor& node, States states, bool by_tiles);

// A node of `ggml_ssm_scan` (Mamba 1 and 2).
bool is_known_scan(const ggml_tensor& node);
States states_of_scan(const ggml_tensor& node);
std::unique_ptr<Task> scan(const ggml_tensor& node, States states);

// A convolution over the last `taps` tokens of each channel; its states are the inputs of taps - 1 tokens.
struct Convolution {
    // Part of states and inputs, one behind the other, that becomes the next state: from a column on.
    struct Kept {
        int64_t column;
        Rows to;
    };

    int64_t taps, channels, tokens, sequences;
    const float* weights;                // (channels, taps)
    const float* bias;                   // (channels); null: none
    bool has_silu;
    const char* inputs;                  // channels side by side
    size_t token_stride, sequence_stride;  // bytes
    std::vector<const float*> states;    // one for each sequence: (channels, taps - 1)
    std::vector<Kept> kept;
    float* result;                       // (sequences, tokens, channels)
};

bool is_known_convolution(int64_t taps, int64_t channels);
std::unique_ptr<Task> convolution(Convolution convolution);

// Copies rows of some sequences, or any run of floats.
struct Copy {
    const float* from;
    float* to;
};
std::unique_ptr<Task> copies(std::vector<Copy> rows, int64_t width);

}  // namespace recurrent
