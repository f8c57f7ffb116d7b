(smallest, dark) => {
  // What a person would complain about on the page as it stands; each fault in a line, a few examples of each kind.
  const faults = [];
  const root = document.documentElement;
  for (const folded of document.querySelectorAll("details")) folded.open = true;

  const named = (element) => {
    const kind = typeof element.className === "string" ? element.className : element.getAttribute("class") || "";
    const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `<${element.tagName.toLowerCase()}${kind ? ` class="${kind}"` : ""}> ${JSON.stringify(text)}`;
  };
  const few = (what, found) => {
    if (found.length) faults.push(`${what} (${found.length}): ${[...new Set(found)].slice(0, 4).join("; ")}`);
  };

  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll("body *")].filter(
      (each) => !each.closest("svg svg, svg *") && each.getBoundingClientRect().right > root.clientWidth + 0.5);
    faults.push(`scrolls sideways: ${root.scrollWidth} px wide in ${root.clientWidth} px, such as ` +
      wide.slice(-3).map(named).join("; "));
  }
  few("a part scrolls sideways", [...document.querySelectorAll("body *")].filter(
    (each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX) && each.scrollWidth > each.clientWidth + 1)
    .map(named));

  few("text runs out of its box", [...document.querySelectorAll("body *")].filter((each) => {
    const look = getComputedStyle(each), own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return own && !each.closest("svg") && look.display !== "inline" && look.overflowX === "visible" &&
      each.scrollWidth > each.clientWidth + 1;
  }).map(named));

  const small = [], cut = [], letters = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (letters.nextNode()) {
    const element = letters.currentNode.parentElement;
    if (!letters.currentNode.data.trim() || !element || element.closest("style, script, title, head")) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    let size = parseFloat(getComputedStyle(element).fontSize);
    const svg = element.closest("svg");
    if (svg && element.getScreenCTM) {
      const matrix = element.getScreenCTM();
      if (!matrix) continue;
      size *= Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c));
      const box = element.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      if (box.left < frame.left - 1.5 || box.right > frame.right + 1.5 || box.top < frame.top - 1.5 ||
          box.bottom > frame.bottom + 1.5) cut.push(named(element));
    }
    if (size < smallest - 0.05) small.push(`${size.toFixed(1)} px ${named(element)}`);
  }
  few(`letters below ${smallest} px`, small);
  few("text runs out of its picture", cut);

  if (document.body) {
    const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g).map(Number);
    const light = (red + green + blue) / 3;
    if (dark ? light > 80 : light < 200) faults.push(`the page is ${dark ? "not dark" : "not light"}: ${light}`);
  }
  return faults;
}
