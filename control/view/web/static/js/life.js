// The cards beside a flow's picture: its life cycle, the latency of its first packet, the
// endpoints, and the record itself.

import { podAt } from './api.js';
import { announce, h, icon, replace } from './dom.js';
import { between, bytes, clock, number, percent, plural, seconds } from './format.js';
import { about, branches, ended, entries, masquerades, reasons, tone } from './words.js';
import { endpoints } from './walk.js';

const card = (title, ...children) => h('section', { class: 'card-box' }, h('h2', null, title), ...children);

/** timeline is the history, each event with the time since the first. */
export function timeline(r) {
  const life = r.life;
  if (!life) return null;
  const history = life.history ?? [{ event: life.state, time: life.since }];
  return card('Life cycle',
    h('ol', { class: 'timeline' }, history.map((m, i) => h('li', { 'data-tone': tone(m.event) },
      h('span', { class: 'event' }, m.event), h('span', { class: 'after' }, i === 0 ? clock(m.time) : `+${seconds(between(history[0].time, m.time))}`),
      h('span', { class: 'about' }, about(m.event))))),
    life.sent && h('p', { class: 'counts' },
      h('span', null, '↑ ', h('b', null, bytes(life.sent.bytes)), ` ${plural(life.sent.packets, 'packet')}`),
      life.received && h('span', null, '↓ ', h('b', null, bytes(life.received.bytes)), ` ${plural(life.received.packets, 'packet')}`)),
    life.repeated ? h('p', { class: 'hint' }, `The first packet was retransmitted ${plural(life.repeated, 'time')}.`) : null,
    life.incomplete ? h('p', { class: 'hint' }, 'Some events were lost or not reported: states may be missing here.') : null,
    !life.over && h('p', { class: 'hint' }, ended(life.state) ? 'The flow has ended. Its conntrack entry still exists; the counters may change.' : 'The flow is open; this page follows it.'));
}

/** stages is the latency of the first packet by stage, as one bar. */
export function stages(r) {
  const st = r.stages;
  if (!st) return null;
  const parts = [['waited', 'in the queue', st.waited], ['decided', 'until decided', st.decided], ['written', r.conntrack ? 'until the entry was written' : 'until the entries of its batch were written', st.written], ['accepted', 'until the verdict was given', st.accepted]].filter(([, , x]) => x !== undefined && x !== null);
  const sum = parts.reduce((a, [, , x]) => a + x, 0) || 1;
  return card(`First packet: ${seconds(sum)}`,
    h('div', { class: 'stages', role: 'img', 'aria-label': parts.map(([name, , x]) => `${name} ${seconds(x)}`).join(', ') },
      parts.map(([name, , x]) => h('span', { class: name, vars: { '--share': x / sum } }))),
    h('dl', { class: 'legend' }, parts.map(([name, until, x]) => [h('dt', { class: name }, name), h('dd', null, h('span', { class: 'about' }, until), h('span', { class: 'amount' }, seconds(x)))])));
}

/** candidates lists all endpoints: the candidates, and the others with the reason of their exclusion. */
export function candidates(r) {
  const list = endpoints(r);
  if (list.length === 0) return r.reason === 'service-proxy' ? card('Endpoints: candidates not known') : null;
  const could = r.candidates.length;
  return card(could > 0 ? `Endpoints: 1 of ${could}` : 'Endpoints: none usable',
    r.balance && h('p', { class: 'hint' }, `${r.balance.algorithm}: ${r.balance.evidence}`),
    r.shadows && h('ul', { class: 'shadows' }, r.shadows.map((o) => h('li', { class: 'hint' }, `${o.algorithm} would select ${o.endpoint === r.endpoint ? 'the same' : podAt(o.endpoint) || o.endpoint}${o.evidence ? `: ${o.evidence}` : ''}`))),
    h('ul', { class: 'endpoints' }, list.map((e) => h('li', { class: e.taken ? 'taken' : e.why ? 'excluded' : '' },
      h('span', { class: 'name', title: e.endpoint }, e.taken && r.pod || podAt(e.endpoint) || e.endpoint), // a pod may be gone since
      e.why ? h('span', { class: 'why' }, e.why) : e.chance !== undefined && [h('span', { class: 'meter', vars: { '--share': e.chance } }), h('span', { class: 'amount' }, percent(e.chance))],
      e.taken && h('span', { class: 'unseen' }, 'taken')))));
}

/** facts are the record's fields, with descriptions. */
export function facts(r) {
  const rows = [
    ['Verdict', r.verdict], ['Reason', reasons[r.reason] ?? r.reason], ['Decided by', r.proxy && `${r.proxy}; nfqproxy only observed it`],
    ['Outdated', r.outdated && `for ${seconds(r.outdated)}: according to the node’s objects, the endpoint had been removed or should get no new flows`], ['Service', r.service], ['Address type', entries[r.entry]],
    ['Policy', r.policy && `${r.policy} (${branches[r.branch] ?? r.branch})`],
    ['Masquerade', r.masqueradeReason && (masquerades[r.masqueradeReason] ?? r.masqueradeReason)], ['Rule', r.masqueradeRule],
    ['Conntrack', r.conntrack], ['Error', r.error], ['Decided on', r.node], ['Table', r.generation ? `generation ${number(r.generation)}${r.tableAge ? `, ${seconds(r.tableAge)} old` : ''}` : ''],
    ['Held', r.held && `${r.held.action} after ${seconds(r.held.seconds)}`],
  ].filter(([, value]) => value);
  return card('Facts', h('dl', { class: 'facts' }, rows.map(([name, value]) => [h('dt', null, name), h('dd', null, value)])));
}

/** raw is the record as the API returned it. */
export function raw(r) {
  const text = JSON.stringify(r, null, 2);
  const button = h('button', { type: 'button', class: 'button small', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      replace(button, icon('copy'), 'Copied');
      announce('Copied');
    } catch {
      getSelection().selectAllChildren(pre); // browsers refuse the clipboard over plain HTTP
      replace(button, icon('copy'), 'Selected: press Ctrl+C');
    }
  } }, icon('copy'), 'Copy');
  const pre = h('pre', { tabindex: 0 }, text);
  const details = h('details', { class: 'card-box raw' }, h('summary', null, h('h2', null, 'Record as JSON')), button, pre);
  return details;
}

/** aside is all cards. */
export const aside = (r) => [timeline(r), stages(r), candidates(r), facts(r), raw(r)];
