// The view of services: the flow counts of each, and their distribution over the endpoints.

import { poll } from './api.js';
import { h, replace } from './dom.js';
import { number, plural, rate } from './format.js';
import { named } from './row.js';
import { errors, fit } from './words.js';

export const EVERY = 2000; // milliseconds between two requests
const SHOWN = 200; // rows; more would take longer to draw than they are shown

/** Speeds computes rates from the counts of successive responses: undefined until the second. */
export class Speeds {
  constructor() { this.before = new Map(); this.speeds = new Map(); }

  take(services) {
    const now = performance.now();
    for (const sv of services) {
      for (const [key, total] of [[keyOf(sv), sv.flows.total], ...sv.endpoints.map((e) => [keyOf(sv, e), e.flows.total])]) {
        const old = this.before.get(key);
        if (old) this.speeds.set(key, Math.max(0, (total - old.total) / (now - old.at) * 1000));
        this.before.set(key, { total, at: now });
      }
    }
  }

  of(service, endpoint) { return this.speeds.get(keyOf(service, endpoint)); }
}

const keyOf = (service, endpoint) => `${service.service} ${service.family} ${service.protocol} ${endpoint?.endpoint ?? ''}`;

export const serviceLink = (sv) => `#/services/${encodeURIComponent(sv.namespace)}/${encodeURIComponent(sv.name)}`;

/** spread is a bar of the endpoints' shares of the random selections. */
export function spread(sv) {
  const used = sv.endpoints.filter((e) => e.observed > 0);
  if (used.length === 0) return h('span', { class: 'hint' }, sv.endpoints.length === 0 ? 'no endpoints' : '–');
  return h('span', { class: 'spread', role: 'img', 'aria-label': used.map((e) => `${e.pod || e.endpoint} ${Math.round(e.observed * 100)}%`).join(', ') },
    used.map((e, i) => h('span', { vars: { '--share': e.observed, '--i': i % 6 }, title: `${e.pod || e.endpoint}: ${(e.observed * 100).toFixed(1)}%` })));
}

const count = (label, n, toneName) => h('td', { class: 'count', 'data-label': label, 'data-tone': n > 0 ? toneName : null }, n > 0 ? number(n) : h('span', { class: 'none' }, '0'));

const columns = [['name', 'Service'], ['rate', 'Flows/s'], ['total', 'Flows'], ['open', 'Open'], ['share', 'Spread over endpoints'], ['fit', 'Even spread?'], ['unanswered', 'Unanswered'], ['errors', 'Errors']];

const keys = {
  name: (sv) => sv.service, rate: (sv, speeds) => -(speeds.of(sv) ?? 0), total: (sv) => -sv.flows.total, open: (sv) => -sv.flows.open,
  fit: (sv) => sv.fit?.pValue ?? 2, unanswered: (sv) => -sv.flows.unanswered, errors: (sv) => -errorsOf(sv),
};

/** errorsOf counts the flows of a service or an endpoint in states that are errors. */
export const errorsOf = (sv) => errors.reduce((sum, state) => sum + sv.flows[state], 0);

export class ServicesView {
  title = 'Services';

  constructor() {
    this.abort = new AbortController();
    this.speeds = new Speeds();
    this.order = 'total';
    this.body = h('tbody', { id: 'services' });
    this.status = h('p', { class: 'hint', role: 'status' }, 'Loading …');
    this.heads = columns.map(([name, title]) => h('th', { class: name, scope: 'col' }, keys[name]
      ? h('button', { type: 'button', class: 'sort', onclick: () => { this.order = name; this.draw(); } }, title) : title));
    this.find = h('input', { type: 'search', class: 'find', 'aria-label': 'Find services', placeholder: 'Find …', autocomplete: 'off', spellcheck: 'false', oninput: () => this.draw() });
    this.element = h('section', { class: 'services', 'aria-labelledby': 'title' },
      h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Services'), this.status, this.find),
      h('div', { class: 'tablebox' }, h('table', { class: 'table' }, h('thead', null, h('tr', null, this.heads)), this.body)));
    poll('/v1/services', EVERY, this.abort.signal, (answer) => { this.answer = answer; this.speeds.take(answer.services); this.draw(); }, (e) => { this.status.textContent = e.message; });
  }

  leave() { this.abort.abort(); }

  keys = { '/': () => this.find.focus(), j: () => this.move(1), k: () => this.move(-1), ArrowDown: () => this.move(1), ArrowUp: () => this.move(-1) };

  move(by) {
    const links = [...this.body.querySelectorAll('a')];
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
  }

  draw() {
    if (!this.answer) return;
    const { services, nodes, lost } = this.answer;
    const key = keys[this.order];
    const of = (sv) => key(sv, this.speeds);
    const wanted = this.find.value.trim().toLowerCase();
    const found = services.filter((sv) => sv.service.toLowerCase().includes(wanted) || sv.clusterIP.startsWith(wanted));
    const sorted = found.sort((a, b) => (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : a.service < b.service ? -1 : 1));
    columns.forEach(([name], i) => this.heads[i].setAttribute('aria-sort', name === this.order ? (name === 'name' || name === 'fit' ? 'ascending' : 'descending') : 'none'));
    this.status.textContent = `${found.length > SHOWN ? `the first ${SHOWN} of ` : ''}${plural(found.length, 'service port')}, summed over ${nodes.length === 1 ? nodes[0] || 'one node' : `${nodes.length} nodes`}${lost ? `; ${number(lost)} flows were lost and are not counted` : ''}`;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.getAttribute('href') + document.activeElement.dataset.key : null;
    replace(this.body, sorted.slice(0, SHOWN).map((sv) => this.row(sv)));
    if (focused) [...this.body.querySelectorAll('a')].find((a) => a.getAttribute('href') + a.dataset.key === focused)?.focus();
  }

  row(sv) {
    const verdict = fit(sv);
    return h('tr', { 'data-service': sv.service },
      h('td', { class: 'name' }, h('a', { href: serviceLink(sv), 'data-key': keyOf(sv) }, named(sv.service)), h('span', { class: 'address' }, `${sv.clusterIP}:${sv.port} ${sv.protocol}`)),
      h('td', { class: 'count rate', 'data-label': 'flows/s' }, rate(this.speeds.of(sv))), h('td', { class: 'count', 'data-label': 'flows' }, number(sv.flows.total)), h('td', { class: 'count open' }, number(sv.flows.open)),
      h('td', { class: 'share' }, spread(sv)),
      h('td', { class: 'fit' }, sv.fit ? h('span', { class: 'pill', 'data-tone': verdict.tone, title: verdict.text }, { pass: 'too few flows', warn: 'uneven', good: 'even' }[verdict.tone]) : h('span', { class: 'none' }, '–')),
      count('unanswered', sv.flows.unanswered, 'warn'), count('errors', errorsOf(sv), 'bad'));
  }
}
