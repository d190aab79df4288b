// Text in pictures: its width, line breaks and elements.

import { s } from './dom.js';

const context = document.createElement('canvas').getContext('2d');
const faces = {};

/** fonts are the kinds of text that pictures have; sizes in units of the picture. */
export const fonts = {
  title: { size: 13, line: 18, weight: 600, face: '--sans' },
  body: { size: 13, line: 18, weight: 400, face: '--sans' },
  small: { size: 11.5, line: 16, weight: 400, face: '--sans' },
  code: { size: 12, line: 17, weight: 400, face: '--mono' },
  label: { size: 10.5, line: 14, weight: 600, face: '--sans', spacing: 0.3 },
};

/** width measures a text in units of the picture. */
export function width(text, font) {
  const f = fonts[font];
  faces[f.face] ??= getComputedStyle(document.documentElement).getPropertyValue(f.face);
  context.font = `${f.weight} ${f.size}px ${faces[f.face]}`;
  return context.measureText(text).width + (f.spacing ?? 0) * text.length;
}

/** wrap breaks a text into lines: at spaces, or else anywhere. */
export function wrap(text, room, font) {
  const lines = [];
  let line = '';
  for (let word of text.split(' ')) {
    const longer = line ? `${line} ${word}` : word;
    if (width(longer, font) <= room) { line = longer; continue; }
    if (line) lines.push(line);
    while (width(word, font) > room && word.length > 1) {
      let n = Math.max(1, Math.floor(word.length * room / width(word, font)));
      while (n > 1 && width(word.slice(0, n), font) > room) n--;
      lines.push(word.slice(0, n));
      word = word.slice(n);
    }
    line = word;
  }
  lines.push(line);
  return lines;
}

/** cut shortens a text in the middle to fit: both ends of a name are significant. */
export function cut(text, room, font) {
  if (width(text, font) <= room) return text;
  for (let n = text.length - 2; n > 2; n--) {
    const short = `${text.slice(0, Math.ceil(n / 2))}…${text.slice(text.length - Math.floor(n / 2))}`;
    if (width(short, font) <= room) return short;
  }
  return '…';
}

/** text draws one line; y is its middle. */
export const text = (x, y, what, font, extra = '', props = {}) =>
  s('text', { x, y: y + fonts[font].size * 0.36, class: `t-${font} ${extra}`, ...props }, what);

/** block draws lines under each other from y on, and gives the element and its height. */
export function block(x, y, what, room, font, extra = '') {
  const lines = wrap(what, room, font);
  const { line } = fonts[font];
  return { element: s('g', null, lines.map((l, i) => text(x, y + line * (i + 0.5), l, font, extra))), height: lines.length * line };
}
