// Included in front of llama.cpp's sources where they are compiled for Vulkan.
//
// ggml names three types of VK_EXT_layer_settings, which came with the headers 1.3.272; Debian 12 has 1.3.239. Here is
// what it uses of them, laid out as Vulkan has it. A loader that does not know the extension passes over it.
#if __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>
#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>

namespace vk {
enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char* layer;
    const char* setting;
    LayerSettingTypeEXT type;
    uint32_t count;
    const void* values;
};

struct LayerSettingsCreateInfoEXT {
    VkStructureType type = static_cast<VkStructureType>(1000496000);
    const void* next = nullptr;
    uint32_t count;
    const LayerSettingEXT* settings;

    LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT>& all)
        : count(static_cast<uint32_t>(all.size())), settings(all.data()) {}
};
} // namespace vk
#endif
#endif
