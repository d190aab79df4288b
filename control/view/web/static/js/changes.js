// What the service table changed of a service port, as a list and as marks on its time line.

import { h } from './dom.js';
import { between, clock, plural, seconds } from './format.js';
import { exclusions } from './words.js';

const SHOWN = 5; // the newest; the others are folded

const name = (e) => e.pod || e.endpoint;

const parts = {
  added: (e) => `${name(e)} added${e.excluded ? `, without flows: ${exclusions[e.excluded] ?? e.excluded}` : ''}`,
  removed: (e) => `${name(e)} removed`,
  usable: (e) => `${name(e)} receives flows again`,
  excluded: (e) => `${name(e)} receives no new flows: ${exclusions[e.excluded] ?? e.excluded}`,
};

/** ofOneNode leaves those of one node: all nodes make nearly the same. */
export function ofOneNode(changes) {
  const node = changes?.map((c) => c.node).sort()[0];
  return changes?.filter((c) => c.node === node);
}

/** sentence is a change in words. */
export function sentence(change) {
  const list = (change.endpoints ?? []).map((e) => parts[e.change](e));
  if (change.settings) list.unshift('settings changed');
  if (change.created) list.unshift('service created');
  if (change.more) list.push(`${plural(change.more, 'more endpoint')} changed`);
  return list.join('; ');
}

/** progress are the times after the beginning of a change, on its node: when its table was in force, the first flow
 * that obeyed it, and what was left of endpoints without new flows. */
function progress(change) {
  const start = change.changed ?? change.received ?? change.time;
  const after = (time) => {
    const s = between(start, time);
    return s < 0 ? `${seconds(-s)} before` : `after ${seconds(s)}`;
  };
  const list = [];
  if (change.inForce) list.push([`in force ${after(change.inForce)}`]);
  const flow = (text, f) => list.push([text, h('a', { href: `#/flows/${encodeURIComponent(f.id)}` }, after(f.time))]);
  if (change.firstFlow) flow('first flow ', change.firstFlow);
  for (const e of change.endpoints ?? []) {
    const ends = e.change === 'removed' || e.change === 'excluded';
    if (e.rules) list.push([`rules ${ends ? 'without' : 'with'} ${name(e)} ${after(e.rules)}`]);
    else if (e.rulesAwaited) list.push([ends ? `the rules still lead to ${name(e)}` : `the rules do not lead to ${name(e)} yet`]);
    if (e.firstFlow) flow(`first flow to ${name(e)} `, e.firstFlow);
    if (e.lastFlow) flow(`last flow to ${name(e)} `, e.lastFlow);
    if (e.closed) list.push([`its last connection closed ${after(e.closed)}`]);
    else if (e.open) list.push([`${plural(e.open, 'connection')} to it still open`]);
  }
  return list.length > 0 && h('small', { class: 'progress' }, change.node && `${change.node}: `, list.flatMap((x, i) => i > 0 ? [', ', ...x] : x));
}

/** changeList lists the changes, the newest first. */
export function changeList(changes, open) {
  if (!changes?.length) return null;
  const item = (c) => h('li', null, h('time', { datetime: c.time, title: `table generation ${c.generation}` }, clock(c.time).slice(0, 8)), ' ', h('span', null, sentence(c)), progress(c));
  const [first, rest] = [changes.toReversed().slice(0, SHOWN), changes.toReversed().slice(SHOWN)];
  return h('div', { class: 'changes' }, h('h3', null, 'Changes of the service table'), h('ol', null, first.map(item)),
    rest.length > 0 && h('details', { open }, h('summary', null, `${plural(rest.length, 'earlier change')}`), h('ol', null, rest.map(item))));
}

/** marks are the positions, from 0 to 1, of changes on a time line of a length and an end in milliseconds. */
export function marks(changes, length, end) {
  if (length <= 0) return [];
  return (changes ?? []).map((c) => 1 - (end - Date.parse(c.time)) / length).filter((x) => x >= 0 && x <= 1);
}
