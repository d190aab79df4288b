// The view of services: the flow counts of each, and their distribution over the endpoints.

import { h } from './dom.js';
import { number, plural, rate } from './format.js';
import { named } from './row.js';
import { ServiceList, keyOf } from './servicelist.js';
import { errors, fit } from './words.js';

export const EVERY = 2000; // milliseconds between two requests
const SHOWN = 200; // rows; more would take longer to draw than they are shown

/** Speeds computes rates from the counts of successive responses: undefined until the second. */
export class Speeds {
  constructor() { this.before = new Map(); this.speeds = new Map(); }

  /** take takes the counts of services or, for one service, also of its endpoints. */
  take(services, endpoints = false) {
    for (const sv of services) {
      this.count(keyOf(sv), sv.flows.total);
      if (endpoints) for (const e of sv.endpoints) this.count(keyOf(sv, e), e.flows.total);
    }
  }

  count(key, total) {
    const old = this.before.get(key), now = performance.now();
    if (old) this.speeds.set(key, Math.max(0, (total - old.total) / (now - old.at) * 1000));
    this.before.set(key, { total, at: now });
  }

  of(service, endpoint) { return this.speeds.get(keyOf(service, endpoint)); }
}

export const serviceLink = (sv) => `#/services/${encodeURIComponent(sv.namespace)}/${encodeURIComponent(sv.name)}`;

/** spread is a bar of the endpoints' shares of the random selections. */
export function spread(sv) {
  const used = sv.endpoints.filter((e) => e.observed > 0);
  if (used.length === 0) return h('span', { class: 'hint' }, sv.endpoints.length === 0 ? 'no endpoints' : '–');
  return h('span', { class: 'spread', role: 'img', 'aria-label': used.map((e) => `${e.pod || e.endpoint} ${Math.round(e.observed * 100)}%`).join(', ') },
    used.map((e, i) => h('span', { vars: { '--share': e.observed, '--i': i % 6 }, title: `${e.pod || e.endpoint}: ${(e.observed * 100).toFixed(1)}%` })));
}

export const figure = (label, value, toneName, href) => h(href ? 'a' : 'div', { class: 'figure', href, 'data-tone': toneName }, h('div', null, h('span', { class: 'number' }, value), h('span', { class: 'label' }, label)));

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
    this.list = new ServiceList();
    this.speeds = new Speeds();
    this.order = 'total';
    this.rows = new Map(); // of the table: the element and what it shows, by service port
    this.body = h('tbody', { id: 'services', onclick: (e) => { if (!e.target.closest('a')) location.hash = e.target.closest('tr')?.querySelector('a').hash ?? location.hash; } });
    this.status = h('p', { class: 'hint', role: 'status' }, 'Loading …');
    this.heads = columns.map(([name, title]) => h('th', { class: name, scope: 'col' }, keys[name]
      ? h('button', { type: 'button', class: 'sort', onclick: () => { this.order = name; this.draw(); } }, title) : title));
    this.find = h('input', { type: 'search', class: 'find', 'aria-label': 'Find services', placeholder: 'Find …', autocomplete: 'off', spellcheck: 'false', oninput: () => this.draw() });
    this.element = h('section', { class: 'services', 'aria-labelledby': 'title' },
      h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Services'), this.status, this.find),
      h('div', { class: 'tablebox' }, h('table', { class: 'table' }, h('thead', null, h('tr', null, this.heads)), this.body)));
    this.list.follow(EVERY, (answer, active) => {
      this.answer = answer;
      if (active) this.speeds.take(answer.services);
      this.draw();
    }, (e) => { this.status.textContent = e.message; });
  }

  leave() { this.list.leave(); }

  keys = { '/': () => this.find.focus(), j: () => this.move(1), k: () => this.move(-1), ArrowDown: () => this.move(1), ArrowUp: () => this.move(-1) };

  move(by) {
    const links = [...this.body.querySelectorAll('a')];
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
  }

  draw() {
    if (!this.answer) return;
    const { nodes, lost } = this.answer, wanted = this.find.value.trim().toLowerCase();
    const [active, others] = this.list.find((sv) => sv.service.toLowerCase().includes(wanted) || sv.clusterIP.startsWith(wanted));
    const sorted = this.sort(active, others), found = active.length + others.length;
    columns.forEach(([name], i) => this.heads[i].setAttribute('aria-sort', name === this.order ? (name === 'name' || name === 'fit' ? 'ascending' : 'descending') : 'none'));
    this.status.textContent = `${found > SHOWN ? `the first ${SHOWN} of ` : ''}${plural(found, 'service port')}${this.list.whole ? '' : ' so far'}, summed over ${nodes.length === 1 ? nodes[0] || 'one node' : `${nodes.length} nodes`}${lost ? `; ${number(lost)} flows were lost and are not counted` : ''}`;
    this.drawRows(sorted);
  }

  /** drawRows draws the rows anew that changed, and leaves the others alone. */
  drawRows(services) {
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const before = this.rows;
    this.rows = new Map();
    for (const sv of services) {
      const key = keyOf(sv), known = before.get(key), shows = this.shows(sv);
      this.rows.set(key, known?.shows === shows ? known : { shows, element: this.row(sv) });
    }
    const elements = [...this.rows.values()].map((row) => row.element);
    const keep = new Set(elements);
    for (const element of [...this.body.children]) if (!keep.has(element)) element.remove();
    let next = this.body.firstElementChild;
    for (const element of elements) {
      if (element === next) next = next.nextElementSibling;
      else this.body.insertBefore(element, next);
    }
    if (focused && document.activeElement === document.body) this.rows.get(focused)?.element.querySelector('a').focus({ preventScroll: true });
  }

  speed(sv) { return rate(sv.flows.total > 0 ? this.speeds.of(sv) : 0); }

  /** shows is what a row is made of. */
  shows(sv) {
    const shares = sv.endpoints.map((e) => e.observed.toFixed(3));
    return JSON.stringify([this.speed(sv), sv.flows.total, sv.flows.open, sv.flows.unanswered, errorsOf(sv), sv.fit?.pValue, shares]);
  }

  /** sort returns the first services in the chosen order. Without flows all are equal, and in the order of their names. */
  sort(active, others) {
    const key = keys[this.order], byName = this.order === 'name';
    const keyed = (byName ? [...active, ...others] : active).map((sv) => [key(sv, this.speeds), sv]);
    keyed.sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x.service < y.service ? -1 : 1));
    const sorted = keyed.slice(0, SHOWN).map(([, sv]) => sv);
    return byName ? sorted : [...sorted, ...others.slice(0, SHOWN - sorted.length)];
  }

  row(sv) {
    const verdict = fit(sv);
    return h('tr', { 'data-service': sv.service },
      h('td', { class: 'name' }, h('a', { href: serviceLink(sv), 'data-key': keyOf(sv) }, named(sv.service)), h('span', { class: 'address' }, `${sv.clusterIP}:${sv.port} ${sv.protocol}`)),
      h('td', { class: 'count rate', 'data-label': 'flows/s' }, this.speed(sv)), h('td', { class: 'count', 'data-label': 'flows' }, number(sv.flows.total)), h('td', { class: 'count open' }, number(sv.flows.open)),
      h('td', { class: 'share' }, spread(sv)),
      h('td', { class: 'fit' }, sv.fit ? h('span', { class: 'pill', 'data-tone': verdict.tone, title: verdict.text }, { pass: 'too few flows', warn: 'uneven', good: 'even' }[verdict.tone]) : h('span', { class: 'none' }, '–')),
      count('unanswered', sv.flows.unanswered, 'warn'), count('errors', errorsOf(sv), 'bad'));
  }
}
