// Elements. What comes from the cluster becomes text nodes and attributes, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'hidden') element[name] = value;
    else if (name === 'vars') for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(name, value === true ? '' : value);
  }
  append(element, children);
  return element;
}

/** append adds children: nodes, texts, arrays of them; nothing for null and false. */
export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** h makes an HTML element: h('a', {class, href, onclick, vars: {'--share': 0.5}}, ...children). */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** s makes an SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** replace gives an element other children. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** setText changes a text only if it differs, to avoid repaints. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** announce is for screen readers. */
export function announce(text) {
  setText(document.getElementById('announce'), text);
}

const shapes = {
  overview: 'M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z',
  why: 'M9 9a3 3 0 1 1 4.500 2.600c-1 .6-1.500 1.200-1.500 2.400M12 18h.01',
  flows: 'M3 6h10M3 12h18M3 18h14',
  services: 'M4 5h16v5H4zM4 14h16v5H4zM8 7.500h.01M8 16.500h.01',
  map: 'M12 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4ZM5 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4ZM19 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4ZM11 8l-5 8M13 8l5 8',
  explain: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18ZM12 11v5M12 8h.01',
  hold: 'M8 5v14M16 5v14',
  lab: 'M9 3h6M10 3v6L5 19a1.500 1.500 0 0 0 1.400 2h11.200a1.500 1.500 0 0 0 1.400-2L14 9V3M8 14h8',
  learn: 'M12 6c-2-1.500-5-2-8-2v14c3 0 6 .5 8 2 2-1.500 5-2 8-2V4c-3 0-6 .5-8 2ZM12 6v14',
  projector: 'M3 4h18M5 4v11h14V4M12 15v5M8 20h8',
  play: 'M7 5l12 7-12 7z',
  search: 'M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14ZM16 16l5 5',
  again: 'M20 11a8 8 0 1 0-2.300 6.700M20 4v7h-7',
  close: 'M6 6l12 12M18 6L6 18',
  back: 'M15 5l-7 7 7 7',
  forward: 'M9 5l7 7-7 7',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M5 19l1.400-1.400M17.600 6.400L19 5',
  moon: 'M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10z',
  large: 'M3 19l5-13 5 13M5 14.500h6M15 19l3-8 3 8M16 16.500h4',
  keys: 'M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M7 14h10',
};

/** icon draws one of the shapes. It is decoration: a label beside it has the meaning. */
export const icon = (name) => s('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, s('path', { d: shapes[name] }));
