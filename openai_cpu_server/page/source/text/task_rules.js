// Task lists in GitHub's form: "- [x] done".

export function taskRules(markdown) {
  markdown.core.ruler.after("inline", "tasks", ({ tokens, Token }) => {
    tokens.forEach((token, index) => {
      const [item, paragraph] = tokens.slice(Math.max(0, index - 2), index);
      if (token.type !== "inline" || item?.type !== "list_item_open" || paragraph?.type !== "paragraph_open") return;
      const [first] = token.children;
      const mark = first?.type === "text" && first.content.match(/^\[([ xX])\]\s/);
      if (!mark) return;
      first.content = first.content.slice(mark[0].length);
      item.attrJoin("class", "task");
      const box = new Token("task", "", 0);
      box.meta = { done: mark[1] !== " " };
      token.children.unshift(box);
    });
  });
  markdown.renderer.rules.task = (tokens, index) => {
    const { done } = tokens[index].meta;
    return `<span class="${done ? "tick done" : "tick"}" role="img" aria-label="${done ? "done" : "to do"}"></span>`;
  };
}
