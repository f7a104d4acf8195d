// All that we use of ggml's inside, declared once: the layouts are those of llama-cpp-python 0.3.36
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
    GGML_TYPE_Q4_K = 12,
    GGML_TYPE_Q5_K = 13,
    GGML_TYPE_Q6_K = 14,
    GGML_TYPE_BF16 = 30,
};

struct ggml_tensor {
    ggml_type type;
    void* buffer;
    int64_t ne[4];  // number of elements
    size_t nb[4];   // stride in bytes
    int32_t op;
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

// What each thread that computes a node is given.
struct ggml_compute_params {
    int ith, nth;  // this thread's number, and how many there are
    size_t wsize;
    void* wdata;  // scratch for all threads together
    ggml_threadpool* threadpool;
    bool use_ref;  // only ggml's reference implementation is wanted
};

static_assert(offsetof(ggml_tensor, ne) == 16 && offsetof(ggml_tensor, nb) == 48);
static_assert(offsetof(ggml_tensor, op_params) == 84 && offsetof(ggml_tensor, src) == 152);
static_assert(offsetof(ggml_tensor, data) == 248 && sizeof(ggml_tensor) == 336);
static_assert(offsetof(ggml_compute_params, wdata) == 16 && offsetof(ggml_compute_params, use_ref) == 32);

// ggml's own functions, those that ours stand in front of included.
struct Ggml {
    void (*barrier)(ggml_threadpool*);
    void (*chunk_set)(ggml_threadpool*, int);
    int (*chunk_add)(ggml_threadpool*, int);  // returns what was there before
    void (*flash_attn_ext)(const ggml_compute_params*, ggml_tensor*);
    void (*mul_mat)(const ggml_compute_params*, ggml_tensor*);
    int (*graph_compute)(ggml_cgraph*, ggml_cplan*);
};

// Finds them at the first call, when ggml has been loaded behind this library; ends the process if it was not.
const Ggml& ggml();
