#include "ggml_api.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

void* loaded_ggml() {
    for (const char* name : {"libggml-cpu.so.0", "libggml-cpu.so"})
        if (void* library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) return library;
    std::fprintf(stderr, "libocs_kernels: libggml-cpu is not loaded\n");
    std::abort();
}

// Searches ggml's library and its dependencies, because among all libraries ours comes first with this name.
template <class Function>
void find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function) return;
    std::fprintf(stderr, "libocs_kernels: libggml-cpu has no %s\n", name);
    std::abort();
}

Ggml found() {
    void* library = loaded_ggml();
    Ggml ggml;
    find(library, "ggml_barrier", ggml.barrier);
    find(library, "ggml_threadpool_chunk_set", ggml.chunk_set);
    find(library, "ggml_threadpool_chunk_add", ggml.chunk_add);
    find(library, "ggml_graph_n_nodes", ggml.graph_n_nodes);
    find(library, "ggml_graph_nodes", ggml.graph_nodes);
    find(library, "ggml_graph_compute", ggml.graph_compute);
    find(library, "ggml_compute_forward_flash_attn_ext", ggml.flash_attn_ext);
    find(library, "ggml_compute_forward_mul_mat", ggml.mul_mat);
    find(library, "ggml_compute_forward_rms_norm_mul_fused", ggml.rms_norm_mul_fused);
    find(library, "ggml_cpu_extra_compute_forward", ggml.extra_compute_forward);
    find(library, "ggml_get_type_traits", ggml.type_traits);
    return ggml;
}

}  // namespace

const Ggml& ggml() {
    static const Ggml ggml = found();
    return ggml;
}
