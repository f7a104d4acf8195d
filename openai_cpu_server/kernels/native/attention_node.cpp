#include "attention_node.hpp"

#include <cmath>
#include <cstring>

namespace attention {

namespace {

enum Parameter { SCALE, MAX_BIAS, SOFT_CAP };
constexpr int WIDTH_MIN = 16, WIDTH_MAX = 256, GROUP_MAX = 64;

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

bool is_known_width(const ggml_tensor& k, const ggml_tensor& v) {
    const bool in_blocks = k.type == GGML_TYPE_Q8_0 || v.type == GGML_TYPE_Q8_0;
    return k.ne[0] == v.ne[0] && k.ne[0] >= WIDTH_MIN && k.ne[0] <= WIDTH_MAX &&
           k.ne[0] % (in_blocks ? 32 : 16) == 0;
}

}  // namespace

bool is_known(const ggml_tensor& node) {
    const ggml_tensor &q = *node.src[0], &k = *node.src[1], &v = *node.src[2];
    return q.type == GGML_TYPE_F32 && cell_unpacker(k.type) && cell_unpacker(v.type) &&
           is_known_width(k, v) && is_one_batch(q) && is_one_batch(k) && is_one_batch(v) &&
           k.ne[2] == v.ne[2] && q.ne[2] % k.ne[2] == 0 && q.ne[2] / k.ne[2] <= GROUP_MAX &&
           q.nb[0] == sizeof(float) && is_known_mask(node.src[3], q, k);
}

Node::Node(const ggml_tensor& node)
    : q(*node.src[0]),
      k(*node.src[1]),
      v(*node.src[2]),
      mask(node.src[3]),
      sinks(node.src[4] ? static_cast<const float*>(node.src[4]->data) : nullptr),
      result(const_cast<ggml_tensor&>(node)),
      rows(int(q.ne[1])),
      cells(int(k.ne[1])),
      heads(int(q.ne[2])),
      kv_heads(int(k.ne[2])),
      width(int(k.ne[0])),
      group(heads / kv_heads),
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
