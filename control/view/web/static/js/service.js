// The view of one service: each of its ports, with the expected and the observed share of each endpoint, and what
// the service table changed of it.

import { get, poll, topology } from './api.js';
import { AlgorithmSelect } from './algorithm.js';
import { changeList, marks, ofOneNode } from './changes.js';
import { finding, whyLink } from './finding.js';
import { h, icon, replace } from './dom.js';
import { number, percent, rate, seconds } from './format.js';
import { link } from './filter.js';
import { named } from './row.js';
import { EVERY, Speeds, errorsOf, figure } from './services.js';
import { Shadows } from './shadows.js';
import { Spark } from './spark.js';
import { errors, exclusions, fit, reasons } from './words.js';

const HISTORY = 150; // samples: five minutes

/** History is the rates of a port since the view was opened: of flows, and of errors. */
class History {
  constructor() {
    this.times = []; // of the values, in milliseconds
    this.flows = { values: [], spark: new Spark() };
    this.errors = { values: [], spark: new Spark() };
  }

  /** mark marks changes of the service table. */
  mark(changes) {
    for (const line of [this.flows, this.errors]) line.spark.mark(marks(changes, this.times.at(-1) - this.times[0], this.times.at(-1)));
  }

  take(rateOf, failed) {
    const before = this.failed ?? failed, at = performance.now(), passed = (at - (this.at ?? -Infinity)) / 1000;
    Object.assign(this, { failed, at });
    this.times.push(Date.now());
    if (this.times.length > HISTORY) this.times.shift();
    for (const [line, value] of [[this.flows, rateOf ?? 0], [this.errors, Math.max(0, failed - before) / passed]]) {
      line.values.push(value);
      if (line.values.length > HISTORY) line.values.shift();
      if (line.values.length > 1) line.spark.draw(line.values);
    }
  }
}

export class ServiceView {
  constructor(route) {
    [, this.namespace, this.name] = route.path;
    this.title = `${this.namespace}/${this.name}`;
    this.abort = new AbortController();
    this.speeds = new Speeds();
    this.histories = new Map(); // of ports
    this.algorithm = new AlgorithmSelect(this.title, this.abort.signal);
    this.wrong = h('ul', { class: 'findings' });
    this.ports = h('div', { class: 'ports' }, h('p', { class: 'hint' }, 'Loading …'));
    this.element = h('section', { class: 'service', 'aria-labelledby': 'title' },
      h('a', { class: 'back-link', href: '#/services' }, icon('back'), 'Services', h('kbd', { 'aria-hidden': 'true' }, 'Esc')),
      h('div', { class: 'headline' }, h('h1', { id: 'title' }, named(this.title)),
        h('a', { class: 'button', href: this.flows() }, icon('flows'), 'Flows')),
      this.algorithm.element, this.wrong, this.ports, new Shadows(this.title, this.abort.signal).element, this.yaml());
    this.findings().catch(() => { /* without findings, then */ });
    poll(`/v1/services?changes=true&service=${encodeURIComponent(this.title)}`, EVERY, this.abort.signal, (answer) => this.draw(answer), (e) => this.fail(e.message));
  }

  flows(more = {}) { return link(new URLSearchParams({ service: this.title, ...more })); }

  keys = { Escape: () => { location.hash = '#/services'; } };

  leave() { this.abort.abort(); }

  /** findings are those about this service. */
  async findings() {
    const [t, { findings }] = await Promise.all([topology(), get('/v1/findings', this.abort.signal)]);
    replace(this.wrong, (findings ?? []).filter((f) => f.object === `Service ${this.title}`).map((f) => finding(f, { canWhy: t.canWhy })));
    const from = t.pods.find((p) => !p.name.startsWith(`${this.title}-`))?.name;
    if (t.canWhy && from) this.element.querySelector('.headline').append(h('a', { class: 'button', href: whyLink({ from, to: `${this.name}.${this.namespace}` }) }, icon('why'), 'Why?'));
  }

  /** yaml are the objects, which are requested when they are opened. */
  yaml() {
    const text = h('pre', { tabindex: 0 }, 'Loading …');
    const box = h('details', { class: 'card-box raw yaml', ontoggle: async () => {
      if (!box.open || box.dataset.loaded) return;
      box.dataset.loaded = true;
      try {
        const path = [this.namespace, this.name].map(encodeURIComponent).join('/');
        text.textContent = (await get(`/v1/services/${path}/manifest`, this.abort.signal)).yaml;
      } catch (e) {
        if (this.abort.signal.aborted) return;
        text.textContent = e.message;
        delete box.dataset.loaded;
      }
    } }, h('summary', null, h('h2', null, 'Service and EndpointSlices as YAML')), text);
    return box;
  }

  fail(text) { replace(this.ports, h('p', { class: 'problem', role: 'alert' }, text)); }

  draw(answer) {
    const mine = answer.services.filter((sv) => sv.namespace === this.namespace && sv.name === this.name);
    if (mine.length === 0) { this.fail(`Service ${this.title} not found, or it has no cluster IP.`); return; }
    this.speeds.take(mine, true);
    this.algorithm.show(mine[0].balance);
    for (const sv of mine) {
      const key = `${sv.service} ${sv.family} ${sv.protocol}`;
      if (!this.histories.has(key)) this.histories.set(key, new History());
      this.histories.get(key).take(this.speeds.of(sv), errorsOf(sv));
      this.histories.get(key).mark(ofOneNode(sv.changes));
    }
    const open = !!this.ports.querySelector('.changes details[open]');
    replace(this.ports, mine.map((sv) => this.port(sv, open)));
  }

  port(sv, open) {
    const verdict = fit(sv), history = this.histories.get(`${sv.service} ${sv.family} ${sv.protocol}`);
    const where = [`${sv.clusterIP}:${sv.port}`, sv.nodePort && `node port ${sv.nodePort}`, ...(sv.loadBalancerIPs ?? []).map((ip) => `load balancer ${ip}`), ...(sv.externalIPs ?? []).map((ip) => `external ${ip}`)].filter(Boolean);
    const policies = [`internal policy ${sv.internalPolicy}`, (sv.nodePort || sv.loadBalancerIPs || sv.externalIPs) && `external policy ${sv.externalPolicy}`, sv.affinitySeconds && `affinity for ${sv.affinitySeconds} s`].filter(Boolean);
    return h('article', { class: 'card-box port', 'data-service': sv.service },
      h('header', null, h('h2', null, sv.portName || 'port', ' ', h('span', { class: 'hint' }, `${sv.protocol}, ${sv.family}`)), h('p', { class: 'hint' }, [...where, ...policies].join('  ·  '))),
      h('div', { class: 'figures' },
        figure('flows/s', rate(this.speeds.of(sv))), figure('flows', number(sv.flows.total)), figure('open', number(sv.flows.open)),
        figure('unanswered', number(sv.flows.unanswered), sv.flows.unanswered > 0 ? 'warn' : null, this.flows({ state: 'unanswered' })),
        figure('errors', number(errorsOf(sv)), errorsOf(sv) > 0 ? 'bad' : null, this.flows({ state: errors.join(',') }))),
      h('div', { class: 'timeline-box' },
        h('div', { class: 'line' }, h('span', { class: 'label' }, 'flows/s since this page was opened'), history.flows.spark.element),
        h('div', { class: 'line', 'data-figure': 'errors' }, h('span', { class: 'label' }, 'errors/s'), history.errors.spark.element),
        sv.fit && h('p', { class: 'hint' }, `Its endpoints ${sv.balance ? 'or their algorithm ' : ''}last changed ${seconds(Math.max(0, (Date.now() - Date.parse(sv.fit.since)) / 1000))} ago; shares count from then on.`)),
      changeList(ofOneNode(sv.changes), open),
      sv.refused && h('ul', { class: 'refusals' }, Object.entries(sv.refused).map(([why, n]) => h('li', null, h('b', null, number(n)), ` ${reasons[why] ?? why}`))),
      sv.endpoints.length > 0 ? [h('p', { class: 'fit-sentence', 'data-tone': verdict.tone }, `Distribution over the endpoints: ${verdict.text}${sv.fit && verdict.tone !== 'pass' ? ` (χ² = ${sv.fit.chiSquare.toFixed(2)} with ${sv.fit.degreesOfFreedom} degrees of freedom, ${number(sv.fit.draws)} selections)` : ''}`),
        this.endpoints(sv)] : h('p', { class: 'problem' }, 'No endpoints: every packet to this service is rejected.'));
  }

  endpoints(sv) {
    // Before the first flow: random selection gives all usable endpoints the same share.
    const usable = sv.endpoints.filter((e) => !e.excluded && !e.removed).length;
    const expected = (e) => (sv.fit ? e.expected : 1 / usable);
    const most = Math.max(...sv.endpoints.map((e) => Math.max(sv.balance ? 0 : expected(e), e.observed)), 0.01);
    const bar = (name, share) => h('span', { class: `pair ${name}`, vars: { '--share': share / most } }, h('span', { class: 'amount' }, percent(share)));
    return h('table', { class: 'table endpoints-table' },
      h('thead', null, h('tr', null, ['Endpoint', 'Node', sv.balance ? 'Observed share' : 'Expected and observed share', 'Flows/s', 'Flows', 'Unanswered', 'Errors'].map((t, i) => h('th', { scope: 'col', class: i > 2 ? 'count' : '' }, t)))),
      h('tbody', null, sv.endpoints.map((e) => h('tr', { class: e.excluded || e.removed ? 'excluded' : '' },
        h('td', { class: 'name' }, h('a', { href: this.flows({ endpoint: e.endpoint }) }, e.pod ? named(e.pod) : e.endpoint), h('span', { class: 'address' }, e.pod ? e.endpoint : '')),
        h('td', null, e.node ?? ''),
        h('td', { class: 'pairs' }, e.removed ? h('span', { class: 'why' }, 'removed endpoint') : e.excluded ? h('span', { class: 'why' }, exclusions[e.excluded] ?? e.excluded) : [!sv.balance && bar('expected', expected(e)), (sv.fit || sv.balance) && bar('observed', e.observed)]),
        h('td', { class: 'count' }, rate(this.speeds.of(sv, e))), h('td', { class: 'count' }, number(e.flows.total)),
        h('td', { class: 'count', 'data-tone': e.flows.unanswered > 0 ? 'warn' : null }, number(e.flows.unanswered)),
        h('td', { class: 'count', 'data-tone': errorsOf(e) > 0 ? 'bad' : null }, number(errorsOf(e)))))));
  }
}
