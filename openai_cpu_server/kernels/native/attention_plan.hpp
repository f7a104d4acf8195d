// Rows that are computed together, and their cells.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_node.hpp"
#include "simd.hpp"

namespace attention {

constexpr int TILE = 32;  // cells that are computed together

// Returns true if this many lanes fill vectors; else vectors go along the width, and must fill it.
inline bool has_many_lanes(const Node& node, int lanes) { return lanes > simd::LANES / 2 || !node.fills_vectors; }

// Visible cells: a bit for each row and cell, and for each row one that is set if all its visible cells have weight 0.
class Sight {
public:
    void begin(const Node& node) {
        words_ = (node.cells + 63) / 64;
        bits_.resize(size_t(node.rows) * (words_ + 1));
    }
    void look(const Node& node, int row);

    int words() const { return words_; }
    const uint64_t* of(int row) const { return &bits_[size_t(row) * (words_ + 1)]; }
    bool is_plain(int row) const { return of(row)[words_] == 0; }

private:
    int words_ = 0;
    std::vector<uint64_t> bits_;
};

// Cells of the pool whose results are summed apart where there are many lanes, even in one thread: the order of
// additions does not depend on the number of threads or rows.
constexpr int PART_CELLS = 1024;

// Rows that see mostly the same cells.
struct Block {
    int first, count;             // in the plan's order
    int cells;                    // that any of them sees
    int first_cell, cell_behind;  // of the pool: the first and last that any of them sees

    int first_pool_part() const { return first_cell / PART_CELLS; }
    int num_pool_parts() const { return (cell_behind + PART_CELLS - 1) / PART_CELLS - first_pool_part(); }
};

// Unit of work of a thread: parts of a block's cells, for some groups of heads.
struct Item {
    int block;
    int first_group, num_groups;
    int first_part, part_behind;
    int num_parts;  // of the block
    int partials;   // place of the results of the block's parts, in floats; WHOLE: the item has all parts
};

constexpr int WHOLE = -1;

// The result of a part for one of its groups: for each lane its largest score, the sum of its weights, and the
// weighted sum of values.
inline size_t part_floats(const Node& node, const Block& block) {
    return size_t(block.count) * node.group * (node.value_width + 2);
}

// Division of a block into items.
struct Cut {
    int num_parts;  // of its cells
    int items;      // to which parts go
    int groups;     // of heads in an item
};

struct Plan {
    std::vector<int> order;  // of rows: those that begin with the same cell lie together
    std::vector<Block> blocks;
    std::vector<Item> items;

    // `room`: floats for the results of parts.
    void make(const Node& node, const Sight& sight, int threads, size_t room);

    bool has_parts() const;

private:
    void sort_rows(const Node& node, const Sight& sight);
    void form_blocks(const Node& node, const Sight& sight);
    bool join_last_block(const Node& node, const uint64_t* row, int words);
    void form_items(const Node& node, int threads, size_t room);
    long items_wanted(const Node& node, const Block& block, int threads) const;
    Cut cut(const Node& node, const Block& block, int threads) const;

    std::vector<uint64_t> seen_;  // by the block that is being formed
    std::vector<int> first_cell_;
};

}  // namespace attention
