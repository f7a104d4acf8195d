// Cells that a block computes with.
#pragma once

#include <numeric>
#include <vector>

#include "attention_plan.hpp"
#include "simd.hpp"

namespace attention {

// Cells that any row of a block sees, and the rows that see each of them.
class Gathered {
public:
    void gather(const Plan& plan, const Sight& sight, const Block& block) {
        const int words = sight.words();
        union_.assign(words, 0);
        for (int i = 0; i < block.count; ++i)
            for (int word = 0; word < words; ++word)
                union_[word] |= sight.of(plan.order[block.first + i])[word];
        list_cells();
        stride_ = int(cells_.size()) / 64 + 2;  // a row's last bits may reach into one word more
        seen_.assign(size_t(stride_) * block.count, 0);
        for (int i = 0; i < block.count; ++i)
            move_together(sight.of(plan.order[block.first + i]), &seen_[i * stride_]);
        seen_by_all_.assign(seen_.begin(), seen_.begin() + stride_);
        for (size_t i = stride_; i < seen_.size(); ++i) seen_by_all_[i % stride_] &= seen_[i];
    }

    const std::vector<int>& cells() const { return cells_; }

    // Bit i: 1 if the block's row sees the cell first + i, of `count` cells.
    uint32_t seen(int row, int first, int count) const { return bits(&seen_[row * stride_], first, count); }
    uint32_t seen_by_all(int first, int count) const { return bits(seen_by_all_.data(), first, count); }

private:
    static uint32_t bits(const uint64_t* words, int first, int count) {
        words += first / 64;
        const uint64_t bits = words[0] >> first % 64 | words[1] << 1 << (63 - first % 64);
        return uint32_t(bits & ((uint64_t(1) << count) - 1));
    }

    void list_cells() {
        cells_.resize(64 * union_.size());
        int* next = cells_.data();
        for (int word = 0; word < int(union_.size()); ++word) {
            const uint64_t bits = union_[word];
            if (bits == ~uint64_t(0)) std::iota(next, next + 64, 64 * word);
            else list_bits(bits, 64 * word, next);
            next += __builtin_popcountll(bits);
        }
        cells_.resize(next - cells_.data());
    }

    static void list_bits(uint64_t bits, int first, int* to) {
        for (; bits; bits &= bits - 1) *to++ = first + __builtin_ctzll(bits);
    }

    void move_together(const uint64_t* row, uint64_t* to) const {
        int end = 0;
        for (int word = 0; word < int(union_.size()); ++word) {
            const uint64_t bits = simd::gathered(row[word], union_[word]);
            to[end / 64] |= bits << end % 64;
            if (end % 64) to[end / 64 + 1] |= bits >> (64 - end % 64);
            end += __builtin_popcountll(union_[word]);
        }
    }

    std::vector<uint64_t> union_, seen_, seen_by_all_;
    std::vector<int> cells_;
    int stride_ = 0;
};

}  // namespace attention
