# Part of scripts/bootstrap: finds devices for which llama.cpp can be built, and missing tools. `gpu` is the choice.
readonly oldest_vulkan=239

# Prints in one line what is missing to build for a GPU, or nothing.
missing_for() {
    case $1 in
    cuda) [[ -n $(find_nvcc) ]] || printf 'nvcc, the compiler of CUDA (Debian: apt install nvidia-cuda-toolkit)\n' ;;
    metal) [[ $(uname -s) == Darwin ]] || printf 'macOS, the only system that has Metal\n' ;;
    vulkan) missing_for_vulkan ;;
    esac
}

find_nvcc() {
    command -v "${CUDACXX:-nvcc}" || command -v "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" || true
}

missing_for_vulkan() {
    local missing=()
    command -v glslc >/dev/null || missing+=("glslc")
    [[ $(vulkan_header) =~ ^[0-9]+$ ]] || missing+=("libvulkan-dev")
    has_header spirv/unified1/spirv.hpp || missing+=("spirv-headers")
    if ((${#missing[@]})); then
        printf '%s (Debian: apt install %s)\n' "$(sed 's/ /, /g' <<<"${missing[*]}")" "${missing[*]}"
    elif (($(vulkan_header) < oldest_vulkan)); then
        printf 'newer headers of Vulkan: version 1.3.%s (Debian 12) or later, not %s\n' "$oldest_vulkan" "$(vulkan_header)"
    fi
}

# Prints the preprocessed form of a line, with the header folders that CMake will get.
preprocess() {
    local argument folders=(${VULKAN_SDK:+-I"$VULKAN_SDK/include"})
    for argument in ${CMAKE_ARGS:-}; do
        [[ $argument != -DVulkan_INCLUDE_DIR=* ]] || folders=(-I"${argument#*=}" ${folders[@]+"${folders[@]}"})
    done
    ${CXX:-$(find_compiler)} ${folders[@]+"${folders[@]}"} -E -P -x c++ - 2>/dev/null
}

has_header() {
    preprocess <<<"#include <$1>" >/dev/null
}

# The headers' version is 1.3.N or 1.4.N, and N keeps growing.
vulkan_header() {
    preprocess <<'EOT' | tail -n 1
#if __has_include(<vulkan/vulkan.hpp>)
#include <vulkan/vulkan_core.h>
VK_HEADER_VERSION
#endif
EOT
}

has_nvidia() {
    nvidia-smi -L 2>/dev/null | grep ^GPU >/dev/null
}

# A driver that renders on the CPU does not count. Without vulkaninfo (Debian: vulkan-tools), a device file suffices.
has_vulkan_device() {
    if command -v vulkaninfo >/dev/null; then
        vulkaninfo --summary 2>/dev/null |
            grep -E 'deviceType.*_(DISCRETE|INTEGRATED|VIRTUAL)_GPU' >/dev/null
    else
        compgen -G '/dev/dri/renderD*' >/dev/null
    fi
}

# Prints the choice of `auto`.
best_gpu() {
    if [[ $(uname -s) == Darwin ]]; then
        printf 'metal\n'
    elif has_nvidia && [[ -z $(missing_for cuda) ]]; then
        printf 'cuda\n'
    elif has_vulkan_device && [[ -z $(missing_for vulkan) ]]; then
        printf 'vulkan\n'
    else
        printf 'off\n'
    fi
}

why_no_gpu() {
    if has_vulkan_device; then
        printf 'Vulkan lacks %s' "$(missing_for vulkan)"
    elif has_nvidia; then
        printf 'CUDA lacks %s' "$(missing_for cuda)"
    else
        printf 'neither nvidia-smi nor Vulkan shows one'
    fi
}

gpu_arguments() {
    case $gpu in
    cuda) printf -- '-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER=%s ' "$(find_nvcc)" ;;
    metal) printf -- '-DGGML_METAL=ON ' ;;
    vulkan) printf -- '-DGGML_VULKAN=ON ' ;;
    esac
}

# For the wheel's key, like the compiler's version.
gpu_tools() {
    case $gpu in
    cuda) "$(find_nvcc)" --version 2>/dev/null | tail -n 1 || true ;;
    # sed reads all output. Otherwise glslc may write to a closed pipe, and pipefail would sometimes change the key.
    vulkan) { glslc --version | sed -n 1p && vulkan_header; } 2>/dev/null || true ;;
    esac
}
