#include "attention_node.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace attention {

namespace {

enum Parameter { SCALE, MAX_BIAS, SOFT_CAP };
constexpr int WIDTH_UNIT = 16;     // this many numbers fill whole vectors
constexpr int LEAST_UNIT = 8;      // widths are multiples of this
// Lanes to compute together, by the floats of queries and results that stay in the second cache.
constexpr int FLOATS_MAX = 65536, LANES_MAX = 128;  // more lanes would share unpacking without a gain
// Tiles compute a cell so fast that unpacking it takes as long as 70 lanes.
constexpr int FLOATS_MAX_BY_TILES = 262144, LANES_MAX_BY_TILES = 1024;

float parameter(const ggml_tensor& node, Parameter which) {
    float value;
    std::memcpy(&value, &node.op_params[which], sizeof value);
    return value;
}

bool is_one_batch(const ggml_tensor& tensor) { return tensor.ne[3] == 1; }

bool is_known_mask(const ggml_tensor* mask, const ggml_tensor& q, const ggml_tensor& k) {
    if (!mask) return true;
    return mask->type == GGML_TYPE_F16 && mask->ne[0] == k.ne[1] && mask->ne[1] >= q.ne[1] &&
           mask->ne[2] == 1 && mask->ne[3] == 1 && mask->nb[0] == sizeof(uint16_t);
}

bool is_known_width(const ggml_tensor& tensor, int unit) {
    return tensor.ne[0] > 0 && tensor.ne[0] % unit == 0 && cell_unpacker(tensor.type);
}

int rounded_up(int width) { return (width + WIDTH_UNIT - 1) / WIDTH_UNIT * WIDTH_UNIT; }

bool lies_in(const ggml_tensor& k, const ggml_tensor& v) {
    return v.data == k.data && v.type == k.type && v.ne[0] <= k.ne[0] && v.nb[1] == k.nb[1] && v.nb[2] == k.nb[2];
}

// Returns the largest divisor of `heads` up to `most`.
int largest_part(int heads, int most) {
    int parts = 1;
    while (heads % parts != 0 || heads / parts > most) ++parts;
    return heads / parts;
}

}  // namespace

bool is_known(const ggml_tensor& node, bool by_tiles) {
    const ggml_tensor &q = *node.src[0], &k = *node.src[1], &v = *node.src[2];
    // Without tiles other widths are only for encoders, which have many rows and no mask: a row or two would leave vectors
    // empty, and what ggml computes for some steps and this for others would depend on the step.
    const int unit = by_tiles || !node.src[3] ? LEAST_UNIT : WIDTH_UNIT;
    return q.type == GGML_TYPE_F32 && is_known_width(k, unit) && is_known_width(v, unit) && is_one_batch(q) &&
           is_one_batch(k) && is_one_batch(v) && k.ne[2] == v.ne[2] && q.ne[2] % k.ne[2] == 0 &&
           q.nb[0] == sizeof(float) && is_known_mask(node.src[3], q, k);
}

Node::Node(const ggml_tensor& node, bool by_tiles_)
    : q(*node.src[0]),
      k(*node.src[1]),
      v(*node.src[2]),
      mask(node.src[3]),
      sinks(node.src[4] ? static_cast<const float*>(node.src[4]->data) : nullptr),
      result(const_cast<ggml_tensor&>(node)),
      rows(int(q.ne[1])),
      cells(int(k.ne[1])),
      heads(int(q.ne[2])),
      key_width(int(k.ne[0])),
      value_width(rounded_up(int(v.ne[0]))),
      fills_vectors(key_width % WIDTH_UNIT == 0 && v.ne[0] % WIDTH_UNIT == 0),
      heads_of_kv(heads / int(k.ne[2])),
      by_tiles(by_tiles_),
      lanes_max(std::clamp((by_tiles ? FLOATS_MAX_BY_TILES : FLOATS_MAX) / (key_width + value_width), 1,
                           by_tiles ? LANES_MAX_BY_TILES : LANES_MAX)),
      group(largest_part(heads_of_kv, lanes_max)),
      values_in_keys(lies_in(k, v)),
      scale(parameter(node, SCALE)),
      max_bias(parameter(node, MAX_BIAS)),
      soft_cap(parameter(node, SOFT_CAP)),
      unpack_k(cell_unpacker(k.type)),
      unpack_v(cell_unpacker(v.type)) {
    if (soft_cap != 0) scale /= soft_cap;
}

float Node::slope(int head) const {
    if (max_bias <= 0) return 1;
    const int power = 1 << int(std::floor(std::log2(heads)));
    const float first = std::pow(2.0f, -max_bias / power), further = std::pow(2.0f, -max_bias / 2 / power);
    return head < power ? std::pow(first, head + 1) : std::pow(further, 2 * (head - power) + 1);
}

}  // namespace attention
