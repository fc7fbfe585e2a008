// A displayed formula may be wider than the page: let the keyboard reach and scroll it.
window.addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  for (const formula of document.querySelectorAll("mjx-container[display]")) formula.tabIndex = 0;
});
