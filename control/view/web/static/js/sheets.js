// Style elements are inline styles, which the page's policy forbids. xterm.js makes some: sheets of the document stand in for
// them, which scripts may change.

/** sheetElement stands in for a style element: its text becomes a sheet. */
function sheetElement(create) {
  const element = create('meta'); // shows nothing
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, 'textContent', { set: (text) => { sheet.replaceSync(text); } });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((x) => x !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

/** withSheets runs an action whose style elements become sheets. */
export function withSheets(action) {
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => (name === 'style' ? sheetElement(create) : create(name, options));
  try {
    action();
  } finally {
    delete document.createElement; // the prototype has it
  }
}
