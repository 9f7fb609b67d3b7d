// What a phone needs and CSS cannot say: the header of its column beside each cell of a wide table, which eqr.css then
// shows as a list, and words of commands that are not broken at their hyphens.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const headers = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (headers.length < 3) continue;
    table.classList.add("wide");
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, i) => {
        if (headers[i]) cell.dataset.header = headers[i];
        cell.classList.toggle("blank", !cell.textContent.trim());
      });
    }
  }
  for (const block of document.querySelectorAll(".highlight-bash pre")) {
    const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) if (texts.currentNode.data.includes("-")) found.push(texts.currentNode);
    for (const text of found) {
      const parts = text.data.split(/(\S+)/).map((part) => {
        if (!part.includes("-") || part.length > 36) return part;
        const word = document.createElement("span");
        word.className = "word";
        word.textContent = part;
        return word;
      });
      text.replaceWith(...parts);
    }
  }
});
