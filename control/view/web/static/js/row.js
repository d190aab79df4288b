// A flow as one table row. Its element is created once; later events update it.

import { h, replace, setText } from './dom.js';
import { between, bytes, host, moment, parts, seconds, split } from './format.js';
import { decided } from './way.js';
import { about, ended, label, reasons, state, tone, verdicts } from './words.js';

/** columns of the table: the class of a cell, and its title. */
export const columns = [
  ['time', 'Time'], ['state', 'State'], ['source', 'Source'], ['to', 'Destination'], ['got', 'Endpoint'],
  ['protocol', 'Protocol'], ['node', 'Node'], ['bytes', 'Bytes'], ['duration', 'Duration'],
];

// value is something to filter by. Reached by mouse, and by Tab in the row that is selected.
const value = (field, text, shown, title) => h('button', { type: 'button', class: 'value', tabindex: '-1', 'data-field': field, 'data-value': text, title: title ?? `${field} ${text}` }, shown ?? text);

/** named shows a namespace/name with its namespace in the background. */
export function named(name) {
  const [namespace, rest] = split(name);
  return namespace ? [h('span', { class: 'ns' }, `${namespace}/`), rest] : rest;
}

// place is a source, destination or endpoint: a name, if there is one, the port, which is never cut, and the name's address where it fits.
function place(field, filter, name, address) {
  const [ip, p] = parts(address);
  return [h('span', { class: 'place-name' }, value(field, filter, name ? named(name) : ip), h('span', { class: 'port' }, p)), name && h('span', { class: 'address' }, ip)];
}

function source(r) {
  if (r.sourcePod) return place('pod', r.sourcePod, r.sourcePod, r.source);
  return place('source', host(r.source), r.sourceHost || r.sourceNode, r.source);
}

function destination(r) {
  return r.service ? place('service', r.service, r.service, r.destination) : place('destination', host(r.destination), '', r.destination);
}

function got(r) {
  if (r.verdict !== 'dnat') return value('reason', r.reason, reasons[r.reason] ?? r.reason, r.reason);
  return r.pod ? place('pod', r.pod, r.pod, r.endpoint) : place('endpoint', r.endpoint, '', r.endpoint);
}

const verdict = (o) => `${o.node}: ${verdicts[o.verdict]?.text ?? o.verdict}`;

// nodes are the nodes that the first packet passed, one below the other: the one that decided the record stands out.
const nodes = (r) => decided(r).map((o, i) => h('span', { class: o === r ? 'stop' : 'stop passed' }, i > 0 && h('span', { class: 'then', 'aria-label': 'then' }, '→ '), value('node', o.node, o.node, verdict(o))));

export class Row {
  constructor(r) {
    this.id = r.id;
    const cell = (name, ...children) => h('td', { class: name }, ...children);
    this.pill = h('button', { type: 'button', tabindex: '-1', class: 'pill value', 'data-field': 'state' });
    this.bytes = cell('bytes');
    this.duration = cell('duration');
    this.element = h('tr', { 'data-id': r.id, tabindex: '-1' },
      cell('time', h('a', { href: `#/flows/${encodeURIComponent(r.id)}`, tabindex: '-1', title: r.time }, moment(r.time))),
      cell('state', this.pill),
      cell('source', source(r)), cell('to', destination(r)), cell('got', got(r)),
      cell('protocol', value('protocol', r.protocol)), this.node = cell('node'),
      this.bytes, this.duration);
    this.update(r);
  }

  /** update shows a newer record of the flow, and is true if it names more nodes. */
  update(r) {
    if (r === this.record) return false;
    const joined = !this.record || this.record.others !== r.others;
    this.record = r;
    if (joined) replace(this.node, nodes(r));
    const name = label(r);
    if (this.state !== name) {
      this.state = name;
      setText(this.pill, name);
      this.pill.dataset.value = state(r) || r.verdict;
      this.pill.dataset.field = state(r) ? 'state' : 'verdict';
      this.pill.dataset.tone = tone(state(r));
      this.pill.title = about(state(r));
      this.element.dataset.tone = r.verdict === 'accept' ? 'pass' : tone(state(r));
    }
    const life = r.life;
    const sum = life?.sent ? life.sent.bytes + (life.received?.bytes ?? 0) : 0;
    setText(this.bytes, sum ? bytes(sum) : '');
    // The kernel keeps the entry of a flow that has ended for a while (TIME_WAIT): that is no part of its duration.
    const lasted = life?.over && ended(life.state) ? Math.max(0, between(r.time, life.since)) : life?.duration;
    setText(this.duration, lasted ? seconds(lasted) : '');
    return joined;
  }

  /** select gives the row the keyboard focus, or takes it away. */
  select(is) {
    this.element.tabIndex = is ? 0 : -1;
    this.element.classList.toggle('selected', is);
    for (const x of this.element.querySelectorAll('.value, a')) x.tabIndex = is ? 0 : -1;
    if (is) this.element.focus({ preventScroll: true });
    if (is) this.element.scrollIntoView({ block: 'nearest' });
  }
}
