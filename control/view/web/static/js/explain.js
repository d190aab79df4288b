// The view that simulates a packet.

import { post } from './api.js';
import { h, icon, replace } from './dom.js';
import { blame, field } from './form.js';
import { candidates, facts, raw } from './life.js';
import { Picture } from './picture.js';
import { places } from './suggest.js';
import { sentence, state, tone } from './words.js';
import { verdicts } from './vocabulary.js';

export class ExplainView {
  title = 'Explain';

  constructor(route) {
    this.abort = new AbortController();
    const list = (id) => h('datalist', { id });
    this.sources = list('sources');
    this.destinations = list('destinations');
    this.node = h('select', null, h('option', { value: '' }, 'the deciding node'));
    this.protocol = h('select', null, ['TCP', 'UDP', 'SCTP'].map((p) => h('option', { value: p }, p)));
    this.source = h('input', { type: 'text', list: 'sources', autocomplete: 'off', spellcheck: 'false', placeholder: '10.244.1.9 or pod/NAMESPACE/NAME' });
    this.destination = h('input', { type: 'text', list: 'destinations', autocomplete: 'off', spellcheck: 'false', placeholder: '10.96.0.10:53 or service/NAMESPACE/NAME:PORT' });
    this.local = h('input', { type: 'checkbox' });
    this.submit = h('button', { type: 'submit', class: 'button primary' }, 'Explain', h('kbd', { 'aria-hidden': 'true' }, '↵'));
    this.form = h('form', { class: 'form', novalidate: true, onsubmit: (e) => { e.preventDefault(); this.remember(); } },
      h('div', { class: 'pair-fields' }, field('protocol', 'Protocol', this.protocol), field('node', 'Seen from node', this.node)),
      field('source', 'Source', this.source, 'An address or a pod; the port is optional.'),
      field('destination', 'Destination', this.destination, 'An address or a service, with a port.'),
      h('div', { class: 'field-box check', 'data-field': 'local' }, h('label', null, this.local, 'Sent by the node itself'), h('p', { class: 'wrong', role: 'alert', hidden: true })),
      h('p', { class: 'wrong all', role: 'alert', hidden: true }), this.submit, this.sources, this.destinations);
    this.picture = new Picture('The simulated path of the packet');
    this.head = h('div', { class: 'headline answer', role: 'status' });
    this.side = h('div', { class: 'side' });
    this.result = h('div', { class: 'result', hidden: true }, this.head, h('div', { class: 'columns' }, this.picture.element, this.side));
    this.invitation = h('div', { class: 'empty' }, icon('explain'), h('p', null, 'Simulate a packet: its endpoint, the rules it matches, and why other endpoints are excluded.'), h('p', { class: 'hint' }, 'No packet is sent. The simulation uses the node’s service table and kube-proxy’s rules.'));
    this.element = h('section', { class: 'explain', 'aria-labelledby': 'title' },
      h('div', { class: 'question' }, h('h1', { id: 'title' }, 'Explain a packet'), this.form), h('div', { class: 'outcome' }, this.invitation, this.result));
    places({ sources: this.sources, destinations: this.destinations, nodes: this.node }).then((t) => {
      if (t.nodes.length > 1) this.node.options[0].textContent = 'choose a node';
      this.update(route);
    }).catch((e) => blame(this.form, { field: '', message: e.message }));
  }

  /** update fills in the form from the page's address, and sends the request if it is complete. */
  update({ query }) {
    const q = query.toString();
    if (q === this.query) return true;
    this.protocol.value = (query.get('protocol') || 'TCP').toUpperCase();
    this.node.value = query.get('node') ?? '';
    if (this.node.selectedIndex < 0) this.node.selectedIndex = 0;
    this.source.value = query.get('source') ?? '';
    this.destination.value = query.get('destination') ?? '';
    this.local.checked = query.get('local') === 'true';
    if (query.get('destination')) this.request();
    else this.source.focus({ preventScroll: true });
    return true;
  }

  keys = { '/': () => this.source.focus() };

  leave() {
    this.abort.abort();
    this.picture.leave();
  }

  question() {
    return { protocol: this.protocol.value, source: this.source.value.trim(), destination: this.destination.value.trim(), local: this.local.checked, node: this.node.value };
  }

  /** remember puts the request into the page's address, so that it can be shared, and sends it. */
  remember() {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(this.question())) if (value) query.set(name, value);
    this.query = query.toString();
    history.replaceState(null, '', `#/explain?${this.query}`);
    this.request();
  }

  async request() {
    const q = this.question();
    if (!q.node) delete q.node;
    this.submit.setAttribute('aria-busy', 'true');
    try {
      const r = await post('/v1/explain', { ...q, reply: true }, this.abort.signal);
      blame(this.form, null);
      this.show(r);
    } catch (e) {
      if (this.abort.signal.aborted) return;
      this.result.hidden = true;
      this.invitation.hidden = false;
      blame(this.form, e);
    } finally {
      this.submit.removeAttribute('aria-busy');
    }
  }

  show(r) {
    this.invitation.hidden = true;
    this.result.hidden = false;
    replace(this.head, h('h2', null, sentence(r)), h('span', { class: 'pill', 'data-tone': r.verdict === 'dnat' ? 'good' : tone(state(r)) }, verdicts[r.verdict]?.text ?? r.verdict), r.hint && h('p', { class: 'hint-box' }, r.hint));
    this.picture.show(r);
    replace(this.side, candidates(r), facts(r), raw(r));
  }
}
