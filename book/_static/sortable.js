// Tables in an element of class "sortable": a heading's button sorts by its column, then backwards.
for (const table of document.querySelectorAll(".sortable table")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent.trim();
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = heading.ariaSort !== "ascending" ? 1 : -1;
      for (const other of headings) other.ariaSort = null;
      heading.ariaSort = down > 0 ? "ascending" : "descending";
      const text = row => row.cells[column].textContent.trim();
      const order = (a, b) => down * text(a).localeCompare(text(b), "en", { numeric: true });
      body.append(...[...body.rows].sort(order));
    });
  });
}
