// The view that holds a flow at the queue and steps it through the chains.

import { get, pause, podAt, post, remove, setToken, token, topology } from './api.js';
import { announce, h, icon, replace, setText } from './dom.js';
import { fields } from './filter.js';
import { blame, field } from './form.js';
import { percent, plural } from './format.js';
import { Picture } from './picture.js';
import { requester } from './request.js';
import { tokenForm } from './tokenform.js';
import { holds, sentence, subject } from './words.js';

const filterFields = ['service', 'pod', 'namespace', 'node', 'source', 'destination', 'port', 'protocol'];

/** ended describes a hold that is done. */
const ended = (hold) => (hold.record ? `The flow was ${holds[hold.outcome] ?? hold.outcome}.` : `No flow matched: the hold ${hold.outcome === 'expired' ? 'timed out' : 'was cancelled'}.`);

/** heading is the flow, and what happens to it. */
function heading({ state, record: r, outcome }) {
  if (state === 'waiting') return 'Waiting for a flow';
  if (!r) return 'No flow was held';
  if (state === 'holding') return sentence(r, r.verdict === 'dnat').replace(': sent to ', ': held for ');
  return outcome === 'dropped' ? `${subject(r)}: ${holds.dropped}` : sentence(r, true);
}

export class HoldView {
  title = 'Hold';

  constructor(route) {
    this.abort = new AbortController();
    this.picture = new Picture('Path of the held packet');
    this.content = h('div', { class: 'hold-content' });
    this.element = h('section', { class: 'hold', 'aria-labelledby': 'title' }, this.content, this.picture.element);
    this.picture.element.hidden = true;
    this.route = route;
    this.acts = Promise.resolve();
    this.start();
  }

  leave() {
    this.abort.abort();
    clearInterval(this.clock);
    this.picture.leave();
  }

  async start() {
    try {
      const t = await topology();
      if (!t.canHold) { this.message('Holding flows is not available', 'The server does not allow it, or nfqproxy only observes the nodes’ own service proxies. It is available in a lab whose nodes run nfqproxy: nfqproxy lab.'); return; }
      if (!token()) { this.askToken(); return; }
      const { holds: all } = await get('/v1/holds', this.abort.signal);
      const mine = all.find((x) => x.state !== 'done');
      if (mine) this.follow(mine);
      else this.arm();
    } catch (e) {
      if (!this.abort.signal.aborted) this.message('Cannot hold flows', e.message);
    }
  }

  message(title, text) {
    replace(this.content, h('div', { class: 'headline' }, h('h1', { id: 'title' }, title)), h('p', { class: 'problem', role: 'alert' }, text));
  }

  askToken(wrong = '') {
    const form = tokenForm(h('h1', { id: 'title' }, 'Hold a flow'), 'Holding flows changes traffic, so it requires the server’s token.', wrong, () => this.start());
    replace(this.content, form);
    form.querySelector('input').focus();
  }

  /** arm shows the form with the filters of the flow to hold. */
  arm() {
    this.hold = null;
    clearInterval(this.clock);
    this.picture.element.hidden = true;
    const inputs = Object.fromEntries(filterFields.map((name) => [name, h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: name === 'service' ? 'NAMESPACE/NAME' : 'any', value: this.route.query.get(name) ?? '', list: name === 'service' ? 'held-services' : null })]));
    const seconds = h('select', null, [30, 60, 120, 300, 600].map((n) => h('option', { value: n, selected: n === 60 }, `${n} s`)));
    const services = h('datalist', { id: 'held-services' });
    const form = h('form', { class: 'form', novalidate: true, onsubmit: async (e) => {
      e.preventDefault();
      const flow = Object.fromEntries(filterFields.map((name) => [name, inputs[name].value.trim()]).filter(([, value]) => value));
      try {
        if (flow.service && (await this.matching(flow.service)).length === 0) {
          blame(form, { field: 'service', message: `There is no service ${flow.service}.` });
          return;
        }
        const hold = await post('/v1/holds', { flow, seconds: Number(seconds.value) }, this.abort.signal);
        this.follow(hold);
      } catch (error) {
        this.refused(error, form);
      }
    } },
    h('p', { class: 'hint' }, 'The next new flow that matches is held at the queue, before it reaches the rules. You then step it through, rule by rule.'),
    h('div', { class: 'grid-fields' }, filterFields.map((name) => field(name, name[0].toUpperCase() + name.slice(1), inputs[name], fields[name])), field('seconds', 'Hold for at most', seconds, 'then it is released as decided')),
    h('p', { class: 'wrong all', role: 'alert', hidden: true }), h('button', { type: 'submit', class: 'button primary' }, icon('hold'), 'Hold the next request'), services);
    replace(this.content, h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Hold the next request')), form);
    get('/v1/services', this.abort.signal).then((a) => replace(services, [...new Set(a.services.map((sv) => `${sv.namespace}/${sv.name}`))].map((value) => h('option', { value })))).catch(() => { /* no suggestions, then */ });
    inputs.service.focus({ preventScroll: true });
  }

  refused(error, form) {
    if (this.abort.signal.aborted) return;
    if (error.status === 401) { setToken(''); this.askToken(error.message); return; }
    const known = filterFields.includes(error.field) || error.field === 'seconds';
    if (form) blame(form, { field: known ? error.field : '', message: error.message });
    else if (this.problem) { this.problem.hidden = false; setText(this.problem, error.message); }
  }

  /** follow shows a hold at each change until it is done. */
  async follow(hold) {
    this.build();
    this.show(hold);
    while (this.hold === hold && hold.state !== 'done' && !this.abort.signal.aborted) {
      try {
        const next = await get(`/v1/holds/${encodeURIComponent(hold.id)}?after=${hold.generation}`, this.abort.signal);
        if (this.hold?.id !== hold.id) return;
        if (next.generation > this.hold.generation) this.show(next);
        hold = this.hold;
      } catch (e) {
        if (this.abort.signal.aborted) return;
        this.refused(e);
        if (e.status === 404) return;
        await pause(1000);
        if (this.hold?.id !== hold.id) return;
        hold = this.hold;
      }
    }
  }

  /** matching are the service ports that a filter matches. */
  async matching(service) { return (await get(`/v1/services?service=${encodeURIComponent(service)}`, this.abort.signal)).services; }

  /** offer has a button send the request that is waited for, in labs. */
  async offer(hold) {
    const { service, protocol } = hold.query.flow;
    const answer = this.sender.querySelector('.request-result')?.textContent;
    this.sender.hidden = !service || (hold.state !== 'waiting' && !answer); // its answer stays
    if (!service || hold.state === 'done' || this.offered === hold.id) return;
    this.offered = hold.id;
    const [t, services] = await Promise.all([topology(), this.matching(service)]);
    const mine = services.filter((x) => [x.service, `${x.namespace}/${x.name}`, x.name].includes(service));
    const sv = mine.find((x) => x.protocol === (protocol || 'TCP').toUpperCase()) ?? mine[0];
    if (!t.canRequest || !sv || sv.protocol === 'SCTP') return;
    const from = h('select', { 'aria-label': 'From' }, [...t.pods, ...t.hosts].map((x) => h('option', { value: x.name }, x.name)));
    const at = sv.family === 'IPv6' ? `[${sv.clusterIP}]` : sv.clusterIP;
    replace(this.sender, h('label', { class: 'choose' }, h('span', null, 'From'), from), requester(`Send a request to ${sv.namespace}/${sv.name}`, () => ({ from: from.value, to: `${at}:${sv.port}`, protocol: sv.protocol.toLowerCase() }), this.abort.signal));
  }

  /** build creates the elements that show a hold. */
  build() {
    const button = (id, label, key, props) => h('button', { type: 'button', class: 'button', id: `hold-${id}`, ...props }, label, key && h('kbd', { 'aria-hidden': 'true' }, key));
    this.heading = h('h1', { id: 'title' });
    this.countdown = h('span', { class: 'countdown' }, h('span', { class: 'ring' }), h('span', { class: 'left' }));
    this.problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    this.about = h('p', { class: 'hint', role: 'status' });
    this.choices = h('select', { id: 'hold-choose', 'aria-label': 'Choose another endpoint', onchange: () => this.act({ action: 'choose', endpoint: this.choices.value }) });
    this.bar = h('div', { class: 'actions', role: 'toolbar', 'aria-label': 'Actions for the held flow' },
      button('step', 'Step', 's', { onclick: () => this.act({ action: 'step' }), class: 'button primary' }), button('back', 'Back', 'b', { onclick: () => this.act({ action: 'back' }) }),
      h('label', { class: 'choose' }, h('span', null, 'Endpoint'), this.choices),
      button('release', 'Release', 'r', { onclick: () => this.act({ action: 'release' }) }), button('drop', 'Drop', 'd', { class: 'button danger', onclick: () => this.act({ action: 'drop' }) }));
    this.cancel = button('cancel', 'Cancel', '', { onclick: () => this.end() });
    this.again = button('again', 'Hold another', '', { class: 'button primary', onclick: () => this.arm() });
    replace(this.content, h('div', { class: 'headline' }, this.heading, this.countdown), this.about, this.problem, this.sender = h('div', { class: 'sender' }), this.bar, this.cancel, this.again);
    clearInterval(this.clock);
    this.clock = setInterval(() => this.tick(), 250);
  }

  show(hold) {
    const arrived = this.hold?.state !== 'holding' && hold.state === 'holding';
    this.hold = hold;
    const r = hold.record;
    const { state } = hold;
    this.problem.hidden = true;
    this.element.dataset.state = state;
    const steps = r?.steps?.length ?? 0;
    setText(this.heading, heading(hold));
    const wanted = Object.entries(hold.query.flow).filter(([, v]) => v).map(([k, v]) => `${k} ${v}`).join(', ');
    setText(this.about, state === 'waiting' ? `The next new flow with ${wanted} will be held.` : state === 'done' ? ended(hold) : hold.step >= steps ? 'All rules are done. The next step releases it.' : `Step ${hold.step} of ${steps}. Next: ${r.steps[hold.step].text}.${hold.retransmissions ? ` The client retransmitted it ${plural(hold.retransmissions, 'time')}.` : ''}`);
    this.offer(hold).catch(() => { /* the user sends one */ });
    this.bar.hidden = state !== 'holding';
    this.cancel.hidden = state !== 'waiting';
    this.again.hidden = state !== 'done';
    document.getElementById('hold-back')?.toggleAttribute('disabled', hold.step === 0);
    if (r) this.showChoices(r);
    this.picture.element.hidden = !r;
    if (r) this.picture.show(r, state === 'holding' ? hold.step : undefined);
    this.tick();
    if (arrived) { announce('A flow is held'); document.getElementById('hold-step')?.focus(); }
    if (state === 'holding') this.picture.element.querySelector('.next')?.scrollIntoView({ block: 'nearest' });
  }

  showChoices(r) {
    const several = r.candidates.length > 1;
    this.choices.closest('label').hidden = !several;
    replace(this.choices, r.candidates.map((c) => h('option', { value: c.endpoint, selected: c.endpoint === r.endpoint }, `${podAt(c.endpoint) || c.endpoint}${c.probability === undefined ? '' : ` (${percent(c.probability)})`}`)));
  }

  tick() {
    const { hold } = this;
    const left = hold?.expires ? Math.max(0, (Date.parse(hold.expires) - Date.now()) / 1000) : 0;
    this.countdown.hidden = !hold?.expires;
    this.countdown.style.setProperty('--left', Math.min(1, left / (hold?.query.seconds || 60)));
    setText(this.countdown.lastChild, `${Math.ceil(left)} s`);
    this.countdown.title = 'until it is released as decided';
  }

  /** act queues an action: actions run one after the other. */
  act(what) {
    this.acts = this.acts.then(() => this.actNow(what));
  }

  async actNow(what) {
    if (this.hold?.state !== 'holding') return;
    try {
      const next = await post(`/v1/holds/${encodeURIComponent(this.hold.id)}/act`, what, this.abort.signal);
      if (next.generation > this.hold.generation) this.show(next);
    } catch (e) {
      this.refused(e);
    }
  }

  async end() {
    try {
      await remove(`/v1/holds/${encodeURIComponent(this.hold.id)}`);
      this.arm();
    } catch (e) {
      this.refused(e);
    }
  }

  keys = {
    s: () => this.act({ action: 'step' }), b: () => this.act({ action: 'back' }),
    r: () => this.act({ action: 'release' }), d: () => this.act({ action: 'drop' }),
  };
}
