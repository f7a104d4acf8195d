#include "attention_plan.hpp"

#include <algorithm>
#include <numeric>

#include "simd.hpp"

namespace attention {

namespace {

constexpr uint16_t HIDDEN = 0xfc00;  // -infinity as f16
constexpr int UNPACKING = 6;         // unpacking a cell costs as much as computing with it for this many lanes
constexpr int UNPACKING_FOR_TILES = 70, SPEED_OF_TILES = 5;
constexpr int ITEMS_A_THREAD = 4;    // so that threads end at the same time
constexpr int PART_CELLS_MIN = 8 * TILE;

long cost(const Node& node, long cells, int lanes) {
    if (!node.by_tiles) return cells * (UNPACKING + lanes);
    return cells * (has_many_lanes(node, lanes) ? UNPACKING_FOR_TILES + lanes : SPEED_OF_TILES * (UNPACKING + lanes));
}

int count(const uint64_t* bits, int words) {
    int result = 0;
    for (int i = 0; i < words; ++i) result += __builtin_popcountll(bits[i]);
    return result;
}

int count_of_both(const uint64_t* a, const uint64_t* b, int words) {
    int result = 0;
    for (int i = 0; i < words; ++i) result += __builtin_popcountll(a[i] | b[i]);
    return result;
}

int first_bit(const uint64_t* bits, int words) {
    for (int i = 0; i < words; ++i)
        if (bits[i]) return 64 * i + __builtin_ctzll(bits[i]);
    return 64 * words;
}

struct Cells {
    uint64_t seen = 0;
    bool has_weights = false;
};

// The 64 cells from `first` on, or fewer at the end.
Cells look_at(const uint16_t* mask, int first, int cells) {
    Cells found;
    uint64_t not_zero = 0;
    int i = 0;
    for (; i < 64 && first + i + 32 <= cells; i += 32) {
        found.seen |= uint64_t(simd::differing(mask + first + i, HIDDEN)) << i;
        not_zero |= uint64_t(simd::differing(mask + first + i, 0)) << i;
    }
    for (; i < 64 && first + i < cells; ++i) {
        found.seen |= uint64_t(mask[first + i] != HIDDEN) << i;
        not_zero |= uint64_t(mask[first + i] != 0) << i;
    }
    found.has_weights = found.seen & not_zero;
    return found;
}

int behind_last_bit(const uint64_t* bits, int words) {
    for (int i = words; i > 0; --i)
        if (bits[i - 1]) return 64 * i - __builtin_clzll(bits[i - 1]);
    return 0;
}

uint64_t all_of(int first, int cells) {
    return cells - first >= 64 ? ~uint64_t(0) : (uint64_t(1) << (cells - first)) - 1;
}

}  // namespace

void Sight::look(const Node& node, int row) {
    uint64_t* bits = &bits_[size_t(row) * (words_ + 1)];
    bool has_weights = false;
    for (int word = 0; word < words_; ++word) {
        Cells found{all_of(64 * word, node.cells), false};
        if (node.mask) found = look_at(node.mask_of(row), 64 * word, node.cells);
        bits[word] = found.seen;
        has_weights = has_weights || found.has_weights;
    }
    bits[words_] = has_weights;
}

void Plan::make(const Node& node, const Sight& sight, int threads, size_t room) {
    sort_rows(node, sight);
    form_blocks(node, sight);
    form_items(node, threads, room);
}

bool Plan::has_parts() const {
    return std::any_of(items.begin(), items.end(), [](const Item& item) { return item.partials != WHOLE; });
}

void Plan::sort_rows(const Node& node, const Sight& sight) {
    first_cell_.resize(node.rows);
    for (int row = 0; row < node.rows; ++row) first_cell_[row] = first_bit(sight.of(row), sight.words());
    order.resize(node.rows);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return first_cell_[a] < first_cell_[b]; });
}

void Plan::form_blocks(const Node& node, const Sight& sight) {
    blocks.clear();
    for (int i = 0; i < node.rows; ++i)
        if (const uint64_t* row = sight.of(order[i]); !join_last_block(node, row, sight.words())) {
            blocks.push_back({i, 1, count(row, sight.words()), first_bit(row, sight.words()), behind_last_bit(row, sight.words())});
            seen_.assign(row, row + sight.words());
        }
    const auto is_dearer = [&](const Block& a, const Block& b) {
        return cost(node, a.cells, a.count * node.group) > cost(node, b.cells, b.count * node.group);
    };
    std::stable_sort(blocks.begin(), blocks.end(), is_dearer);
}

// A row joins the block before it if that is cheaper than to compute it alone.
bool Plan::join_last_block(const Node& node, const uint64_t* row, int words) {
    if (blocks.empty() || (blocks.back().count + 1) * node.group > node.lanes_max) return false;
    Block& block = blocks.back();
    const int lanes = block.count * node.group;
    const int together = count_of_both(seen_.data(), row, words);
    const long apart = cost(node, block.cells, lanes) + cost(node, count(row, words), node.group);
    if (cost(node, together, lanes + node.group) > apart) return false;
    for (int word = 0; word < words; ++word) seen_[word] |= row[word];
    const int behind = std::max(block.cell_behind, behind_last_bit(row, words));
    block = {block.first, block.count + 1, together, std::min(block.first_cell, first_bit(row, words)), behind};
    return true;
}

// This many items of equal cost let threads end at the same time.
long Plan::items_wanted(const Node& node, const Block& block, int threads) const {
    if (threads == 1) return 1;
    long total = 0;
    for (const Block& each : blocks) total += cost(node, each.cells, each.count * node.group);
    const long fair = std::max(1L, total / (ITEMS_A_THREAD * threads));
    return std::max(1L, (cost(node, block.cells, block.count * node.group) + fair - 1) / fair);
}

// A block of few lanes is limited by memory: all heads of a cell, which lie side by side, are read together where
// there are cells enough to cut. A block of many lanes is limited by arithmetic, and its items have a group each.
Cut Plan::cut(const Node& node, const Block& block, int threads) const {
    const long wanted = items_wanted(node, block, threads);
    const long most = std::max(1, block.cells / PART_CELLS_MIN);
    if (has_many_lanes(node, block.count * node.group)) {
        const int parts = std::max(1, block.num_pool_parts());
        const long items = (wanted + node.num_groups() - 1) / node.num_groups();
        return {parts, int(std::min<long>({items, most, parts})), 1};
    }
    const int parts = int(std::min(wanted, most));
    const int items = int(std::min<long>(node.num_groups(), (wanted + parts - 1) / parts));
    return {parts, parts, (node.num_groups() + items - 1) / items};
}

// A block is cut by cells only if there is room for the results of its parts.
void Plan::form_items(const Node& node, int threads, size_t room) {
    items.clear();
    size_t used = 0;
    for (int number = 0; number < int(blocks.size()); ++number) {
        const bool has_many = has_many_lanes(node, blocks[number].count * node.group);
        Cut how = cut(node, blocks[number], threads);
        const size_t floats = how.num_parts * node.num_groups() * part_floats(node, blocks[number]);
        if (used + floats > room) how = {has_many ? how.num_parts : 1, 1, how.groups};
        const int partials = how.items == 1 ? WHOLE : int(used);
        for (int group = 0; group < node.num_groups(); group += how.groups)
            for (int item = 0; item < how.items; ++item) {
                const int num_groups = std::min(how.groups, node.num_groups() - group);
                const int first = how.num_parts * item / how.items, behind = how.num_parts * (item + 1) / how.items;
                items.push_back({number, group, num_groups, first, behind, how.num_parts, partials});
            }
        if (how.items > 1) used += floats;
    }
}

}  // namespace attention
