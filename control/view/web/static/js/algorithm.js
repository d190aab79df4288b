// The select of a service's balancing algorithm.

import { ApiError, get, post, topology } from './api.js';
import { h, replace } from './dom.js';

const RANDOM = 'random'; // kube-proxy's, and the default
const RESET = ''; // what the annotation or the daemon's flag names
// Of algorithms with a parameter these are offered.
const EXAMPLES = { jsq: ['jsq(3)'], eject: ['eject(random)', 'eject(p2c)'] };

export class AlgorithmSelect {
  constructor(service, signal) {
    Object.assign(this, { service, signal });
    this.select = h('select', { id: 'algorithm', onchange: () => this.change() });
    this.about = h('span', { class: 'hint', id: 'algorithm-about' });
    this.select.setAttribute('aria-describedby', 'algorithm-about');
    this.result = h('span', { role: 'status' });
    this.element = h('p', { class: 'algorithm', hidden: true }, h('label', { class: 'choose' }, h('span', null, 'Endpoints selected by'), this.select), this.about, this.result);
    this.summaries = new Map();
    this.shown = RANDOM;
    this.load().catch(() => { /* without a select, then */ });
  }

  async load() {
    if (!(await topology()).canBalance) return;
    const { algorithms } = await get('/v1/balance', this.signal);
    for (const a of algorithms) {
      const offered = a.usage.startsWith(`${a.name}(`) || a.usage.startsWith(`${a.name}:`) ? EXAMPLES[a.name] ?? [] : [a.name];
      for (const name of offered) this.summaries.set(name, a.summary);
    }
    this.element.hidden = false;
    this.fill();
  }

  /** show shows the algorithm in force; undefined is random. */
  show(algorithm) {
    const now = algorithm ?? RANDOM;
    if (now === this.shown || this.busy) return;
    this.shown = now;
    this.fill();
  }

  fill() {
    if (this.summaries.size === 0) return;
    const names = [...new Set([RANDOM, ...this.summaries.keys(), this.shown])];
    replace(this.select, [...names.map((name) => h('option', { value: name }, name)), h('option', { value: RESET }, 'as annotated')]);
    this.select.value = this.shown;
    this.about.textContent = this.summaries.get(this.shown) ?? '';
  }

  async change() {
    const algorithm = this.select.value;
    this.busy = true;
    replace(this.result, 'switching …');
    try {
      await post('/v1/balance', { service: this.service, algorithm }, this.signal);
      replace(this.result);
      if (algorithm !== RESET) {
        this.shown = algorithm;
        this.fill();
      }
    } catch (e) {
      if (this.signal.aborted) return;
      this.fill();
      replace(this.result, h('span', { class: 'problem' }, e instanceof ApiError && e.status === 401 ? 'Switching needs the token of the flow API.' : e.message));
    } finally {
      this.busy = false;
    }
  }
}
