// Every part of ggml's internals that this library uses, declared once: the layouts are those of llama-cpp-python 0.3.36
// (`kernels/library.py` pins it). ggml's headers are not installed with it. The self-test proves these at start.
#pragma once

#include <cstddef>
#include <cstdint>

enum ggml_type : int32_t {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_Q4_0 = 2,
    GGML_TYPE_Q4_1 = 3,
    GGML_TYPE_Q5_0 = 6,
    GGML_TYPE_Q5_1 = 7,
    GGML_TYPE_Q8_0 = 8,
    GGML_TYPE_Q2_K = 10,
    GGML_TYPE_Q3_K = 11,
    GGML_TYPE_Q4_K = 12,
    GGML_TYPE_Q5_K = 13,
    GGML_TYPE_Q6_K = 14,
    GGML_TYPE_IQ2_XXS = 16,
    GGML_TYPE_IQ2_XS = 17,
    GGML_TYPE_IQ3_XXS = 18,
    GGML_TYPE_IQ4_NL = 20,
    GGML_TYPE_IQ3_S = 21,
    GGML_TYPE_IQ2_S = 22,
    GGML_TYPE_IQ4_XS = 23,
    GGML_TYPE_I32 = 26,
    GGML_TYPE_BF16 = 30,
    GGML_TYPE_MXFP4 = 39,
};

// Operations that this library looks for in graphs.
enum ggml_op : int32_t {
    GGML_OP_NONE = 0,
    GGML_OP_ADD = 2,
    GGML_OP_MUL = 7,
    GGML_OP_CONCAT = 22,
    GGML_OP_RMS_NORM = 25,
    GGML_OP_MUL_MAT = 29,
    GGML_OP_MUL_MAT_ID = 30,
    GGML_OP_SCALE = 32,
    GGML_OP_CPY = 34,
    GGML_OP_RESHAPE = 36,
    GGML_OP_VIEW = 37,
    GGML_OP_PERMUTE = 38,
    GGML_OP_TRANSPOSE = 39,
    GGML_OP_GET_ROWS = 40,
    GGML_OP_SSM_CONV = 76,
    GGML_OP_SSM_SCAN = 77,
    GGML_OP_GATED_DELTA_NET = 86,
    GGML_OP_UNARY = 91,
    GGML_OP_GLU = 100,
};

constexpr int32_t GGML_UNARY_OP_SILU = 10;        // its first parameter selects the unary operation
constexpr int32_t GGML_TENSOR_FLAG_COMPUTE = 16;  // threads skip nodes without it

struct ggml_tensor {
    ggml_type type;
    void* buffer;
    int64_t ne[4];  // number of elements
    size_t nb[4];   // stride in bytes
    ggml_op op;
    int32_t op_params[16];
    int32_t flags;
    ggml_tensor* src[10];
    ggml_tensor* view_src;
    size_t view_offs;
    void* data;
    char name[64];
    void* extra;
    char padding[8];
};

struct ggml_cgraph;
struct ggml_cplan;
struct ggml_threadpool;

// Arguments of each thread that computes a node.
struct ggml_compute_params {
    int ith, nth;  // this thread's number, and how many there are
    size_t wsize;
    void* wdata;  // scratch for all threads together
    ggml_threadpool* threadpool;
    bool use_ref;  // only ggml's reference implementation is wanted
};

// Beginning of ggml's facts about a type.
struct ggml_type_traits {
    const char* type_name;
    int64_t blck_size;
    int64_t blck_size_interleave;
    size_t type_size;
    bool is_quantized;
    void (*to_float)(const void* blocks, float* numbers, int64_t count);
};

static_assert(offsetof(ggml_tensor, ne) == 16 && offsetof(ggml_tensor, nb) == 48);
static_assert(offsetof(ggml_tensor, op_params) == 84 && offsetof(ggml_tensor, src) == 152);
static_assert(offsetof(ggml_tensor, data) == 248 && sizeof(ggml_tensor) == 336);
static_assert(offsetof(ggml_compute_params, wdata) == 16 && offsetof(ggml_compute_params, use_ref) == 32);

// ggml's own functions, also those that functions of this library replace.
struct Ggml {
    void (*barrier)(ggml_threadpool*);
    void (*chunk_set)(ggml_threadpool*, int);
    int (*chunk_add)(ggml_threadpool*, int);  // returns the previous one
    int (*graph_n_nodes)(ggml_cgraph*);
    ggml_tensor** (*graph_nodes)(ggml_cgraph*);
    int (*graph_compute)(ggml_cgraph*, ggml_cplan*);
    void (*flash_attn_ext)(const ggml_compute_params*, ggml_tensor*);
    void (*mul_mat)(const ggml_compute_params*, ggml_tensor*);
    void (*rms_norm_mul_fused)(const ggml_compute_params*, ggml_tensor*, ggml_tensor*);
    bool (*extra_compute_forward)(ggml_compute_params*, ggml_tensor*);  // true if an accelerator computed the node
    const ggml_type_traits* (*type_traits)(ggml_type);
};

// Finds them at the first call, when ggml has been loaded behind this library. Ends the process if ggml is missing.
const Ggml& ggml();
