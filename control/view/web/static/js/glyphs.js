// The symbols of object kinds in pictures: about 14 units wide, around their centre.

import { s } from './dom.js';

const shapes = {
  pod: 'M0 -7l6 3.500v7L0 7l-6-3.500v-7zM-6 -3.500L0 0l6-3.500M0 0v7', service: 'M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0',
  host: 'M-6 -5h12v8h-12zM-3 6h6', node: 'M-6 -6h12v5h-12zM-6 1h12v5h-12zM-3.500 -3.500h.01M-3.500 3.500h.01', address: 'M-6 0h12M0 -6v12M-4 -4a6 6 0 0 0 8 8',
};

/** glyph draws the symbol of a kind at (x, y). */
export const glyph = (kind, x, y) => s('path', { class: `glyph ${kind}`, d: shapes[kind] ?? shapes.address, transform: `translate(${x} ${y})` });
