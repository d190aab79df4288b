// What stands beside a flow's picture: its life, where the packet spent its time, the
// endpoints, and the record itself.

import { podAt } from './api.js';
import { announce, h, icon, replace } from './dom.js';
import { bytes, clock, number, percent, plural, seconds } from './format.js';
import { about, branches, ended, entries, masquerades, reasons, tone } from './words.js';
import { endpoints } from './walk.js';

const card = (title, ...children) => h('section', { class: 'card-box' }, h('h2', null, title), ...children);

/** timeline is the history, each moment with its distance from the first. */
export function timeline(r) {
  const life = r.life;
  if (!life) return null;
  const history = life.history ?? [{ event: life.state, time: life.since }];
  const start = Date.parse(history[0].time);
  return card('Life',
    h('ol', { class: 'timeline' }, history.map((m, i) => h('li', { 'data-tone': tone(m.event) },
      h('span', { class: 'event' }, m.event), h('span', { class: 'after' }, i === 0 ? clock(m.time) : `+${seconds((Date.parse(m.time) - start) / 1000)}`),
      h('span', { class: 'about' }, about(m.event))))),
    life.sent && h('p', { class: 'counts' },
      h('span', null, '↑ ', h('b', null, bytes(life.sent.bytes)), ` ${plural(life.sent.packets, 'packet')}`),
      life.received && h('span', null, '↓ ', h('b', null, bytes(life.received.bytes)), ` ${plural(life.received.packets, 'packet')}`)),
    life.repeated ? h('p', { class: 'hint' }, `The first packet came ${plural(life.repeated, 'more time')}.`) : null,
    life.incomplete ? h('p', { class: 'hint' }, 'Some of the kernel’s events were missed: states may be missing here.') : null,
    !life.over && h('p', { class: 'hint' }, ended(life.state) ? 'It has ended. The kernel still has its entry, and its counts may change.' : 'It may go on; this page follows it.'));
}

/** stages is where the packet spent its time, as one bar. */
export function stages(r) {
  const st = r.stages;
  if (!st) return null;
  const parts = [['waited', 'in the queue', st.waited], ['decided', 'until decided', st.decided], ['written', 'until its entry was written', st.written], ['accepted', 'until the verdict was given', st.accepted]].filter(([, , x]) => x !== undefined && x !== null);
  const sum = parts.reduce((a, [, , x]) => a + x, 0) || 1;
  return card(`First packet: ${seconds(sum)}`,
    h('div', { class: 'stages', role: 'img', 'aria-label': parts.map(([name, , x]) => `${name} ${seconds(x)}`).join(', ') },
      parts.map(([name, , x]) => h('span', { class: name, vars: { '--share': x / sum } }))),
    h('dl', { class: 'legend' }, parts.map(([name, about, x]) => [h('dt', { class: name }, name), h('dd', null, h('span', { class: 'about' }, about), h('span', { class: 'amount' }, seconds(x)))])));
}

/** candidates lists all endpoints: those it could have got, and why not the others. */
export function candidates(r) {
  const list = endpoints(r);
  if (list.length === 0) return null;
  const could = r.candidates.length;
  return card(could > 0 ? `Endpoints: 1 of ${could}` : 'Endpoints: none usable',
    h('ul', { class: 'endpoints' }, list.map((e) => h('li', { class: e.taken ? 'taken' : e.why ? 'excluded' : '' },
      h('span', { class: 'name', title: e.endpoint }, podAt(e.endpoint) || e.endpoint),
      e.why ? h('span', { class: 'why' }, e.why) : [h('span', { class: 'meter', vars: { '--share': e.chance } }), h('span', { class: 'amount' }, percent(e.chance))],
      e.taken && h('span', { class: 'unseen' }, 'taken')))));
}

/** facts are the record's words, explained. */
export function facts(r) {
  const rows = [
    ['Verdict', r.verdict], ['Reason', reasons[r.reason] ?? r.reason], ['Service', r.service], ['Came by', entries[r.entry]],
    ['Policy', r.policy && `${r.policy} (${branches[r.branch] ?? r.branch})`],
    ['Masquerade', r.masqueradeReason && (masquerades[r.masqueradeReason] ?? r.masqueradeReason)], ['Rule', r.masqueradeRule],
    ['Conntrack', r.conntrack], ['Error', r.error], ['Decided on', r.node], ['Table', r.generation ? `generation ${number(r.generation)}${r.tableAge ? `, ${seconds(r.tableAge)} old` : ''}` : ''],
    ['Held', r.held && `${r.held.action} after ${seconds(r.held.seconds)}`],
  ].filter(([, value]) => value);
  return card('Facts', h('dl', { class: 'facts' }, rows.map(([name, value]) => [h('dt', null, name), h('dd', null, value)])));
}

/** raw is the record as the API gave it. */
export function raw(r) {
  const text = JSON.stringify(r, null, 2);
  const button = h('button', { type: 'button', class: 'button small', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      replace(button, icon('copy'), 'Copied');
      announce('Copied');
    } catch {
      getSelection().selectAllChildren(pre); // browsers refuse the clipboard over plain HTTP
      replace(button, icon('copy'), 'Marked: press Ctrl C');
    }
  } }, icon('copy'), 'Copy');
  const pre = h('pre', { tabindex: 0 }, text);
  const details = h('details', { class: 'card-box raw' }, h('summary', null, h('h2', null, 'Record as JSON')), button, pre);
  return details;
}

/** aside is all of it. */
export const aside = (r) => [timeline(r), stages(r), candidates(r), facts(r), raw(r)];
