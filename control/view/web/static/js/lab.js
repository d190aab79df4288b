// The view that changes a running lab: its deployments, nodes, pods, Services and faults.

import { get, poll, post, remove, renew, setToken, token } from './api.js';
import { announce, h, icon, replace } from './dom.js';
import { blame } from './form.js';
import { FaultForm } from './faultform.js';
import { deletionForm, manifestForm, podForm } from './labforms.js';
import { deployments, faults, nodes, pods } from './lablists.js';
import { tokenForm } from './tokenform.js';

const EVERY = 1000; // milliseconds between two requests for the lab

const GRACES = [['', 'its grace period'], ['0s', '0 s'], ['10s', '10 s'], ['1m0s', '1 min'], ['10m0s', '10 min']];

export class LabView {
  title = 'Lab';

  constructor() {
    this.abort = new AbortController();
    this.acts = Promise.resolve();
    this.drawn = new Map(); // what the lists show, as text
    const { signal } = this.abort;
    const list = (name) => h('ul', { class: 'lab-list', id: `lab-${name}` });
    this.lists = Object.fromEntries(['deployments', 'nodes', 'pods', 'faults'].map((name) => [name, list(name)]));
    this.grace = h('select', { id: 'lab-grace' }, GRACES.map(([value, text]) => h('option', { value }, text)));
    this.force = h('input', { type: 'checkbox', id: 'lab-force' });
    this.access = h('div', { class: 'card-box', hidden: true });
    this.problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    this.result = h('div', { class: 'lab-result', hidden: true });
    const act = (change, form) => this.change(change, form);
    this.podForm = podForm(act);
    this.faultForm = new FaultForm((fault, form) => this.do(() => this.addFault(fault), form));
    this.removeAll = h('button', { type: 'button', class: 'button small', hidden: true, onclick: () => this.do(() => this.removeFault()) }, 'Remove all');
    const card = (name, title, ...content) => h('section', { class: 'card-box', 'aria-labelledby': `lab-${name}-title` }, h('div', { class: 'headline' }, h('h2', { id: `lab-${name}-title` }, title), content[0]), content.slice(1));
    this.deployments = card('deployments', 'Deployments', null, this.lists.deployments);
    this.element = h('section', { class: 'lab', 'aria-labelledby': 'title' }, h('h1', { id: 'title', class: 'unseen' }, 'Lab'), this.access, this.problem,
      h('div', { class: 'lab-cards' },
        h('div', { class: 'lab-column' }, this.deployments,
          card('nodes', 'Nodes', h('label', { class: 'lab-option' }, this.force, 'Drain also removes pods without a deployment'), this.lists.nodes),
          card('faults', 'Faults', this.removeAll, this.lists.faults, this.faultForm.element),
          card('manifest', 'Services', h('a', { class: 'hint', href: '#/services' }, 'all'), h('p', { class: 'hint' }, 'A manifest adds Services, EndpointSlices, Deployments and Pods, or replaces those with the same names.'), manifestForm(act), deletionForm(act))),
        h('div', { class: 'lab-column' }, card('pods', 'Pods', h('label', { class: 'lab-option' }, 'A removed pod serves for ', this.grace), this.lists.pods, this.podForm.element))),
      this.result);
    if (!token()) this.askToken('');
    get('/v1/lab/faults', signal).then(({ kinds }) => this.faultForm.setKinds(kinds)).catch(() => { /* the problem below is the same one */ });
    poll('/v1/lab', EVERY, signal, (status) => this.show(status), (e) => this.fail(e));
  }

  leave() { this.abort.abort(); }

  fail(e) {
    replace(this.problem, e.message);
    this.problem.hidden = false;
  }

  askToken(wrong) {
    const form = tokenForm(h('h2', null, 'Token'), 'Changes require the token that "nfqproxy lab up" and "lab status" print.', wrong, () => { this.access.hidden = true; });
    replace(this.access, form);
    this.access.hidden = false;
    if (wrong) form.querySelector('input').focus();
  }

  show(status) {
    this.status = status;
    this.problem.hidden = true;
    this.deployments.hidden = !status.deployments;
    this.removeAll.hidden = (status.faults?.length ?? 0) < 2;
    this.draw('deployments', status.deployments ?? [], (list) => deployments(list, this));
    this.draw('nodes', status.nodes, (list) => nodes(list, this));
    this.draw('pods', [status.pods, status.nodes.filter((n) => n.down).map((n) => n.name)], ([list, down]) => pods(list, down, this));
    this.draw('faults', status.faults ?? [], (list) => faults(list, this));
    this.podForm.setNodes(status.nodes);
    this.faultForm.setHosts(status);
  }

  /** draw makes a list anew if what it shows has changed. The button with the focus keeps it. */
  draw(name, what, make) {
    const text = JSON.stringify(what), list = this.lists[name];
    if (this.drawn.get(name) === text) return;
    this.drawn.set(name, text);
    const focused = list.contains(document.activeElement) && document.activeElement.dataset.key;
    replace(list, make(what));
    if (!focused) return;
    const same = [...list.querySelectorAll('[data-key]')].find((b) => b.dataset.key === focused && !b.disabled);
    (same ?? list.querySelector('button:not([disabled])'))?.focus({ preventScroll: true });
  }

  /** do runs an action after those before it, and shows the lines that it returns. */
  do(action, form) {
    this.acts = this.acts.then(async () => {
      try {
        const lines = await action();
        if (!lines) return;
        if (form) blame(form, null);
        this.report('changed', 'good', lines);
        renew(); // names of new pods
        this.show(await get('/v1/lab', this.abort.signal));
      } catch (e) {
        if (this.abort.signal.aborted) return;
        if (e.status === 401) { setToken(''); this.askToken(e.message); }
        if (form) { this.result.hidden = true; blame(form, e); }
        else this.report('not changed', 'bad', [e.message]);
      }
    });
  }

  report(word, tone, lines) {
    replace(this.result, h('span', { class: 'pill', 'data-tone': tone }, word), h('div', { class: 'lines' }, lines.map((line) => h('p', null, line))),
      h('button', { type: 'button', class: 'switch', 'aria-label': 'Close', onclick: () => { this.result.hidden = true; } }, icon('close')));
    this.result.hidden = false;
    announce([`${word}:`, ...lines].join(' '));
  }

  /** change sends a change, or what a function returns when its turn has come; null: none. */
  change(change, form) {
    this.do(async () => {
      const body = typeof change === 'function' ? change() : change;
      return body && (await post('/v1/lab/changes', body, this.abort.signal)).changes;
    }, form);
  }

  scale(deployment, by) {
    this.change(() => {
      const now = this.status.deployments?.find((d) => d.name === deployment);
      const replicas = (now?.replicas ?? 0) + by;
      return now && replicas >= 0 && { scale: { deployment, replicas } };
    });
  }

  removePod(pod) { this.change({ removePod: this.grace.value ? { pod, grace: this.grace.value } : { pod } }); }

  setReady(pod, ready) { this.change({ ready: { pod, ready } }); }

  setServing(pod, running) { this.change({ server: { pod, running } }); }

  nodeEvent(node, action) { this.change({ node: { node, action, force: action === 'drain' && this.force.checked } }); }

  async addFault(fault) {
    const added = await post('/v1/lab/faults', fault, this.abort.signal);
    return [`fault ${added.id}: ${added.text}`];
  }

  async removeFault(id) {
    const { faults: ended } = await remove(id ? `/v1/lab/faults/${id}` : '/v1/lab/faults');
    return ended.map((f) => `fault ${f.id} is over: ${f.text}`);
  }
}
