// A conversation is a tree: an edit or another answer is a sibling, and a leaf selects the visible branch.
// Pure: messages come as a Map from id to {id, parent, created, ...}.

export function childrenOf(messages, parent) {
  return [...messages.values()].filter((one) => one.parent === parent).sort((a, b) => a.created - b.created);
}

/** Messages from the first one down to the leaf. */
export function pathTo(messages, leaf) {
  const path = [];
  const seen = new Set();
  for (let one = messages.get(leaf); one && !seen.has(one.id); one = messages.get(one.parent)) {
    seen.add(one.id);
    path.unshift(one);
  }
  return path;
}

/** The leaf reached from here by always following the newest message. */
export function newestLeaf(messages, id) {
  for (;;) {
    const children = childrenOf(messages, id);
    if (!children.length) return id;
    id = children.at(-1).id;
  }
}

/** A message and all its descendants. */
export function below(messages, id) {
  const found = [id];
  for (const child of childrenOf(messages, id)) found.push(...below(messages, child.id));
  return found;
}
