// The nodes in a flow's picture, and the packet between them.

import { s } from './dom.js';
import { clock, offset } from './format.js';
import { glyph } from './glyphs.js';
import { block, cut, text, width } from './letters.js';
import { end } from './walk.js';
import { ends } from './way.js';
import { entries, gaps, masquerades, reasons, verdicts } from './words.js';

/** GAP is the room between two cards of a picture, PAD that around what is in a card. */
export const GAP = 26, PAD = 12;

// when is the time of a node's decision: of the first, or after it by the nodes' clocks.
const when = (r, first) => (r === first ? clock(r.time) : offset((Date.parse(r.time) - Date.parse(first.time)) / 1000));

/** drawOwn draws the name of the node whose record the picture is about, above its chains. */
export function drawOwn(picture, r, first) {
  heading(picture, picture.next(36, 'hop own', '', `${r.node}: ${verdicts[r.verdict]?.text ?? r.verdict}`), r.node, when(r, first), '');
}

/** drawNode draws another node with its decision. */
export function drawNode(picture, r, first) {
  const room = picture.main - 2 * PAD, bad = ends(r);
  const [title, why] = r.verdict === 'dnat' ? [`Sent to endpoint ${r.pod || r.endpoint}`, r.entry ? `${r.service}, by its ${entries[r.entry] ?? r.entry}` : r.service] : [end(r).title, reasons[r.reason] ?? r.reason];
  const lines = [block(PAD, 0, title, room, 'title', bad ? 'bad' : ''), block(PAD, 0, why, room, 'small', 'dim')];
  if (r.masquerade) lines.push(block(PAD, 0, `masqueraded: ${masquerades[r.masqueradeReason] ?? (r.masqueradeReason || 'by an earlier packet')}`, room, 'small', 'accent'));
  if (r.conntrack === 'failed') lines.push(block(PAD, 0, r.error ?? 'failed', room, 'small', 'bad'));
  const g = picture.next(34 + lines.reduce((sum, l) => sum + l.height, 0) + 10, `hop ${bad ? 'stop bad' : ''}`, '', `${r.node}: ${verdicts[r.verdict]?.text ?? r.verdict}`);
  heading(picture, g, r.node, when(r, first), r.id);
  let y = g.y + 34;
  for (const l of lines) {
    l.element.setAttribute('transform', `translate(0 ${y})`);
    g.append(l.element);
    y += l.height;
  }
}

// heading is the first line of a node's card: its name, which leads to its record, and a note.
function heading(picture, g, node, note, id) {
  const room = picture.main - 2 * PAD - 34 - width(note, 'small');
  const name = text(PAD + 18, g.y + 18, cut(node, room, 'title'), 'title', '', { 'data-name': node });
  g.append(glyph('node', PAD + 6, g.y + 18), id ? s('a', { href: `#/flows/${encodeURIComponent(id)}`, 'data-key': `node ${id}`, 'aria-label': `The record of ${node}` }, name) : name);
  g.append(text(picture.main - PAD, g.y + 18, note, 'small', 'dim', { 'text-anchor': 'end' }));
}

/** drawGap draws a node that has no record. */
export function drawGap(picture, node) {
  const why = gaps[picture.observed.has(node) ? 'no-record' : 'not-observed'], words = block(PAD, 0, why, picture.main - 2 * PAD, 'small', 'dim');
  const g = picture.next(34 + words.height + 10, 'hop gap', '', `${node}: ${why}`);
  heading(picture, g, node, '', '');
  words.element.setAttribute('transform', `translate(0 ${g.y + 34})`);
  g.append(words.element);
}

/** drawSegment writes the packet's addresses beside the path, and which of them the node before has changed. */
export function drawSegment(picture, { source, destination }, before) {
  const x = PAD + 24, room = picture.main - x - PAD;
  const part = (value, was) => s('tspan', { class: was !== undefined && value !== was ? 'changed' : '' }, value);
  const from = part(source, before?.source), to = part(destination, before?.destination);
  const one = width(`${source} → ${destination}`, 'code') <= room;
  const rows = (one ? [[from, ' → ', to]] : [[from], ['→ ', to]]).map((parts) => ['code', parts]);
  const changed = [before && destination !== before.destination && 'destination translated', before && source !== before.source && (before.masquerade ? 'source masqueraded' : 'source translated')].filter(Boolean);
  if (changed.length > 0) rows.push(['small', [changed.join(', ')]]);
  picture.at += rows.length * 17 - 8;
  const g = s('g', { class: 'segment' });
  rows.forEach(([font, parts], i) => {
    const line = text(x, picture.at - GAP + 17 - (rows.length - i) * 17 + 4, '', font, font === 'small' ? 'dim' : '');
    line.append(...parts);
    g.append(line);
  });
  picture.boxes.append(g);
}
