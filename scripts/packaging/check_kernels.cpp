// Reports the libraries of kernels that load, and suit the CPU that runs this: CPU LIBRARY...
#include <dlfcn.h>

#include <cstdio>

namespace {

template <typename Function>
Function* function_of(void* library, const char* name) {
    return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

int main(int count, char** arguments) {
    int suiting = 0;
    for (int at = 2; at < count; ++at) {
        // Resolves all symbols now, not at the first call.
        void* library = dlopen(arguments[at], RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            std::printf("%s\n", dlerror());
            return 1;
        }
        auto* suits = function_of<bool()>(library, "ocs_suits_this_cpu");
        auto* instructions = function_of<const char*()>(library, "ocs_instruction_set");
        if (suits == nullptr || instructions == nullptr) {
            std::printf("%s: what is it?\n", arguments[at]);
            return 1;
        }
        std::printf("  %s: %s %s\n", arguments[1], instructions(), suits() ? "suits" : "is for other CPUs");
        suiting += suits();
    }
    return suiting == 0;
}
