#include "elementwise.hpp"

#include "simd.hpp"

namespace elementwise {
namespace {

using simd::floats;
using simd::LANES;

enum { GEGLU = 1, SWIGLU_OAI = 3 };  // of ggml_glu_op

// A tensor may have fewer rows than the result: then they are repeated.
float* row_of(const ggml_tensor& tensor, int64_t row, const ggml_tensor& result) {
    const int64_t i1 = row % result.ne[1], i2 = row / result.ne[1] % result.ne[2], i3 = row / result.ne[1] / result.ne[2];
    return reinterpret_cast<float*>(static_cast<uint8_t*>(tensor.data) + i1 % tensor.ne[1] * tensor.nb[1] +
                                    i2 % tensor.ne[2] * tensor.nb[2] + i3 % tensor.ne[3] * tensor.nb[3]);
}

// Multiplies a row by one number, such as a router's weight of an expert. ggml does so number by number.
struct Scaled {
    explicit Scaled(const ggml_tensor&) {}

    void compute(const float* values, const float* factor, int64_t width, float* result) const {
        for (int64_t i = 0; i < width; i += LANES) simd::store(result + i, simd::load(values + i) * *factor);
    }
};

// gate * sigmoid(alpha * gate) * (up + 1), both within a limit. Comparisons keep a NaN.
struct Gated {
    explicit Gated(const ggml_tensor& node) {
        std::memcpy(&alpha, node.op_params + 2, sizeof alpha);
        std::memcpy(&limit, node.op_params + 3, sizeof limit);
    }

    void compute(const float* gates, const float* ups, int64_t width, float* result) const {
        const floats most = simd::splat(limit), least = simd::splat(-limit);
        for (int64_t i = 0; i < width; i += LANES) {
            const floats gate = simd::load(gates + i), up = simd::load(ups + i);
            const floats x = gate > most ? most : gate, below = up > most ? most : up;
            const floats y = below < least ? least : below;
            simd::store(result + i, x / (1.0F + simd::exp(x * -alpha)) * (y + 1.0F));
        }
    }

    float alpha, limit;
};

// gelu(gate) * up, where gelu(x) is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))). ggml looks each number up in
// a table of 16 bits, one after the other, which costs a quarter of the products of a narrow layer.
struct GeluGated {
    explicit GeluGated(const ggml_tensor&) {}

    void compute(const float* gates, const float* ups, int64_t width, float* result) const {
        for (int64_t i = 0; i < width; i += LANES) {
            const floats gate = simd::load(gates + i), up = simd::load(ups + i);
            const floats x = gate <= -10.0F ? floats{} : gate;  // the result there is zero, as in ggml
            const floats exponent = x * (-1.59576912F - 0.07135481F * (x * x));  // (1 + tanh(y)) / 2 = 1 / (1 + e^-2y)
            simd::store(result + i, x / (1.0F + simd::exp(exponent)) * up);
        }
    }
};

float sum_of_squares(const float* x, int64_t width) {
    floats sums[4]{};  // a single one would wait for its own result
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int chain = 0; chain < 4; chain++) {
            const floats part = simd::load(x + i + chain * LANES);
            sums[chain] = simd::multiply_add(part, part, sums[chain]);
        }
    for (; i < width; i += LANES) sums[0] = simd::multiply_add(simd::load(x + i), simd::load(x + i), sums[0]);
    return simd::total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Rows of the result that this thread computes. ggml divides only the rows of one head.
template <class Row>
void each_row(const ggml_compute_params& params, const ggml_tensor& result, Row compute) {
    const int64_t count = result.ne[1] * result.ne[2] * result.ne[3];
    for (int64_t row = count * params.ith / params.nth; row < count * (params.ith + 1) / params.nth; row++) compute(row);
}

template <class Operation>
void compute_share(const ggml_compute_params& params, const ggml_tensor& node) {
    const Operation operation{node};
    each_row(params, node, [&](int64_t row) {
        operation.compute(row_of(*node.src[0], row, node), row_of(*node.src[1], row, node), node.ne[0],
                          row_of(node, row, node));
    });
}

bool has_float_rows(const ggml_tensor& tensor) {
    return tensor.type == GGML_TYPE_F32 && (tensor.nb[0] == sizeof(float) || tensor.ne[0] == 1);
}

const ggml_tensor& weights_of(const ggml_tensor& product, const ggml_tensor& norm) {
    return *product.src[product.src[0] == &norm];
}

bool is_known(const ggml_tensor& node) {
    if (node.op == GGML_OP_MUL) return node.src[1]->ne[0] == 1;
    return node.op == GGML_OP_GLU && (node.op_params[0] == SWIGLU_OAI || node.op_params[0] == GEGLU) && node.src[1];
}

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    return !params.use_ref && is_known(node) && node.ne[0] % LANES == 0 && has_float_rows(node) &&
           has_float_rows(*node.src[0]) && has_float_rows(*node.src[1]);
}

void compute(const ggml_compute_params& params, ggml_tensor& node) {
    if (node.op == GGML_OP_MUL) compute_share<Scaled>(params, node);
    else if (node.op_params[0] == GEGLU) compute_share<GeluGated>(params, node);
    else compute_share<Gated>(params, node);
}

bool can_normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product) {
    const bool has_rows = has_float_rows(*norm.src[0]) && has_float_rows(product ? *product : norm);
    const bool has_weights = !product || (weights_of(*product, norm).ne[0] == norm.ne[0] && has_float_rows(weights_of(*product, norm)));
    return !params.use_ref && norm.ne[0] % LANES == 0 && has_rows && has_weights;
}

void normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product) {
    const ggml_tensor& result = product ? *product : norm;
    const int64_t width = norm.ne[0];
    float epsilon;
    std::memcpy(&epsilon, norm.op_params, sizeof epsilon);
    each_row(params, result, [&](int64_t row) {
        const float* x = row_of(*norm.src[0], row, result);
        float* to = row_of(result, row, result);
        const float factor = 1.0F / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + epsilon);
        if (!product) {
            for (int64_t i = 0; i < width; i += LANES) simd::store(to + i, simd::load(x + i) * factor);
            return;
        }
        const float* weights = row_of(weights_of(*product, norm), row, result);
        for (int64_t i = 0; i < width; i += LANES)
            simd::store(to + i, simd::load(x + i) * factor * simd::load(weights + i));
    });
}

}  // namespace elementwise
