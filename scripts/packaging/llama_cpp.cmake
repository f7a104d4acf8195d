# Read inside llama.cpp's own project (-DCMAKE_PROJECT_llama.cpp_INCLUDE=FILE): changes how it is compiled without a patch
# of its sources. The five libraries that llama-cpp-python installs compute the same, in about half of the compiler's time.

# No installed library links llama-common or cpp-httplib. A normal variable hides the cache variable that the wheel forces.
set(LLAMA_BUILD_COMMON OFF)

# Include a header of this folder in front of a target's C++ sources.
function(ocs_include_first target header)
    target_compile_options(
        ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include '${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${header}'>")
endfunction()

# Set a property of some of a target's sources, which are named as in its CMakeLists.txt.
function(ocs_set_property target property value)
    get_target_property(folder ${target} SOURCE_DIR)
    list(TRANSFORM ARGN PREPEND ${folder}/)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY ${property} ${value})
endfunction()

# Called when all targets exist.
function(ocs_adapt)
    foreach(target ggml ggml-base ggml-cpu ggml-cuda ggml-metal ggml-vulkan llama mtmd)
        if(TARGET ${target})
            # A wheel has no links: each library would be in it under three names, as three copies.
            set_property(TARGET ${target} PROPERTY VERSION)
            set_property(TARGET ${target} PROPERTY SOVERSION)
        endif()
    endforeach()
    ocs_include_first(ggml-cpu amx_tiles.h)
    if(TARGET ggml-vulkan)
        ocs_include_first(ggml-vulkan vulkan_layer_settings.h)
    endif()
    # What runs while a model is loaded, or never in a server. Graphs are built in each step: their files keep -O3.
    ocs_set_property(llama COMPILE_OPTIONS -O1 llama-adapter.cpp llama-arch.cpp llama-chat.cpp llama-model-loader.cpp
        llama-model-saver.cpp llama-model.cpp llama-quant.cpp)
    if(TARGET mtmd)
        # Its files that are no graphs of models. The first two take longest, and ninja compiles libmtmd last.
        set(alone clip.cpp mtmd-helper.cpp mtmd.cpp mtmd-audio.cpp mtmd-helper-gen.cpp mtmd-image.cpp)
        get_target_property(sources mtmd SOURCES)
        list(REMOVE_ITEM sources ${alone})
        set_target_properties(mtmd PROPERTIES SOURCES "${alone};${sources}" UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
        ocs_set_property(mtmd SKIP_UNITY_BUILD_INCLUSION ON ${alone})
        ocs_set_property(mtmd COMPILE_OPTIONS -O1 clip.cpp mtmd-helper.cpp)
    endif()
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL ocs_adapt)
