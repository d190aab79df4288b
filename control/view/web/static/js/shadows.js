// The comparison of a service's shadows: algorithms that decide in parallel, without effect.

import { get, topology } from './api.js';
import { h, replace } from './dom.js';
import { number, percent } from './format.js';

const EVERY = 2000; // milliseconds

export class Shadows {
  constructor(service, signal) {
    Object.assign(this, { service, signal });
    this.element = h('section', { class: 'card-box shadows', hidden: true, 'aria-labelledby': 'shadows-title' });
    this.load().catch(() => { /* without a comparison, then */ });
  }

  async load() {
    if (!(await topology()).canBalance) return;
    const answer = await get(`/v1/shadows?service=${encodeURIComponent(this.service)}`, this.signal);
    if (answer.algorithms.length === 0) return;
    this.element.hidden = false;
    this.draw(answer);
    const timer = setInterval(async () => {
      try {
        this.draw(await get(`/v1/shadows?service=${encodeURIComponent(this.service)}`, this.signal));
      } catch { /* the next one may succeed */ }
    }, EVERY);
    this.signal.addEventListener('abort', () => clearInterval(timer));
  }

  draw({ algorithms, services }) {
    replace(this.element, [
      h('header', null, h('h2', { id: 'shadows-title' }, 'Shadows'), h('p', { class: 'hint' }, `${algorithms.join(', ')} decide in parallel, without effect`)),
      services.length === 0 ? h('p', { class: 'hint' }, 'No flows yet.') : services.map((s) => this.port(s)),
    ]);
  }

  port(s) {
    const loads = [s.actual, ...s.shadows];
    const most = Math.max(1, ...loads.flatMap((l) => l.endpoints.map((e) => e.flows)));
    const amount = (text) => h('td', { class: 'count' }, text);
    return h('table', { class: 'table shadows-table', 'data-service': s.service },
      h('caption', { class: 'hint' }, `${s.service}, ${s.protocol}, ${s.family}: ${number(s.flows)} flows with a choice`),
      h('thead', null, h('tr', null, ['Selected by', 'Same endpoint', 'Flow imbalance', 'open connections', 'Flows of each endpoint'].map((t, i) => h('th', { scope: 'col', class: i > 0 && i < 4 ? 'count' : '' }, t)))),
      h('tbody', null, loads.map((l) => h('tr', { 'data-algorithm': l.algorithm ?? '' },
        h('td', { class: 'name' }, l.algorithm ?? 'really'),
        amount(l.algorithm && s.flows > 0 ? percent(l.same / s.flows) : ''), amount(l.flowImbalance.toFixed(2)), amount(l.openImbalance.toFixed(2)),
        h('td', { class: 'pairs' }, l.endpoints.filter((e) => !e.removed).map((e) => h('span', { class: 'pair observed', title: `${e.endpoint}: ${number(e.flows)} flows, ${number(e.open)} open`, vars: { '--share': e.flows / most } }, h('span', { class: 'amount' }, number(e.flows)))))))));
  }
}
