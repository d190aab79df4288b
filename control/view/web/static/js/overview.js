// The first view: what is wrong now, rates, nodes, and the busiest services.

import { poll, topology } from './api.js';
import { finding } from './finding.js';
import { h, replace } from './dom.js';
import { number, percent, plural, rate, seconds } from './format.js';
import { link } from './filter.js';
import { nextStep } from './idle.js';
import { nodes } from './nodes.js';
import { named } from './row.js';
import { EVERY, Speeds, errorsOf, figure, serviceLink, spread } from './services.js';
import { errors } from './words.js';

const RARELY = 10000; // milliseconds between two requests for findings
const BUSIEST = 6; // services shown
const FIRST = 5; // findings shown, until all are wanted

export class OverviewView {
  title = 'Overview';

  constructor() {
    this.abort = new AbortController();
    this.speeds = new Speeds();
    this.figures = h('div', { class: 'figures' });
    this.findings = h('div', { class: 'findings' }, h('p', { class: 'hint' }, 'Loading …'));
    this.count = h('p', { class: 'hint', role: 'status' });
    this.nodes = h('section', { class: 'card-box nodes', 'aria-labelledby': 'nodes-title', hidden: true });
    this.services = h('section', { class: 'card-box busiest', 'aria-labelledby': 'busiest-title' }, h('h2', { id: 'busiest-title' }, 'Busiest services'), h('p', { class: 'hint' }, 'Loading …'));
    this.element = h('section', { class: 'overview', 'aria-labelledby': 'title' },
      h('h1', { id: 'title', class: 'unseen' }, 'Overview'), this.figures,
      h('section', { class: 'wrong-now', 'aria-labelledby': 'wrong-title' }, h('div', { class: 'headline' }, h('h2', { id: 'wrong-title' }, 'What is wrong now'), this.count), this.findings),
      h('div', { class: 'two' }, this.services, this.nodes));
    const { signal } = this.abort;
    poll('/v1/services?active=true', EVERY, signal, (a) => this.drawServices(a), (e) => this.fail(this.services, e));
    poll('/v1/findings', RARELY, signal, (a) => { this.list = a.findings ?? []; this.drawFindings(); }, (e) => { if (e.status !== 404) this.fail(this.findings, e); else this.findings.parentElement.hidden = true; });
    this.unlisten = nodes.listen((list) => this.drawNodes(list ?? []));
    topology().then((t) => { this.topology = t; this.drawFindings(); }).catch(() => { /* names and links are missing, then */ });
  }

  leave() { this.abort.abort(); this.unlisten(); }

  fail(element, e) { replace(element, h('p', { class: 'problem', role: 'alert' }, e.message)); }

  drawServices({ services }) {
    this.speeds.take(services);
    const sum = (f) => services.reduce((n, sv) => n + f(sv), 0);
    const known = services.some((sv) => this.speeds.of(sv) !== undefined);
    const unanswered = sum((sv) => sv.flows.unanswered), failed = sum(errorsOf);
    replace(this.figures,
      figure('flows/s to services', known ? rate(sum((sv) => this.speeds.of(sv) ?? 0)) : '–', null, '#/flows'), figure('flows so far', number(sum((sv) => sv.flows.total)), null, '#/flows'), figure('open', number(sum((sv) => sv.flows.open))),
      figure('unanswered so far', number(unanswered), unanswered > 0 ? 'warn' : null, link(new URLSearchParams({ state: 'unanswered' }))),
      figure('errors so far', number(failed), failed > 0 ? 'bad' : null, link(new URLSearchParams({ state: errors.join(',') }))));
    const busy = services.filter((sv) => sv.flows.total > 0).sort((a, b) => (this.speeds.of(b) ?? 0) - (this.speeds.of(a) ?? 0) || b.flows.total - a.flows.total || (a.service < b.service ? -1 : 1)).slice(0, BUSIEST);
    replace(this.services, h('div', { class: 'headline' }, h('h2', { id: 'busiest-title' }, 'Busiest services'), h('a', { class: 'hint', href: '#/services' }, 'all')), busy.length > 0
      ? h('ul', { class: 'busy' }, busy.map((sv) => h('li', null,
        h('a', { class: 'name', href: serviceLink(sv) }, named(sv.service)), h('span', { class: 'amount' }, `${rate(this.speeds.of(sv))}/s`), spread(sv),
        errorsOf(sv) > 0 ? h('span', { class: 'amount', 'data-tone': 'bad' }, plural(errorsOf(sv), 'error')) : h('span'))))
      : [h('p', { class: 'hint' }, 'No flow to a service yet.'), this.next ??= nextStep()]);
  }

  drawFindings() {
    if (!this.list) return;
    const counted = this.list.filter((f) => !f.ignored), left = this.list.length - counted.length;
    const counts = ['error', 'warning', 'note'].map((s) => [s, counted.filter((f) => f.severity === s).length]).filter(([, n]) => n > 0);
    this.count.textContent = [...counts.map(([s, n]) => plural(n, s)), left > 0 && `${left} ignored`].filter(Boolean).join(', ');
    const wrong = counted.filter((f) => f.severity !== 'note'), shown = this.all ? this.list : wrong.slice(0, FIRST);
    const open = new Set([...this.findings.querySelectorAll('details[open]')].map((d) => d.dataset.key));
    replace(this.findings,
      wrong.length === 0 && h('p', { class: 'all-right', 'data-tone': 'good' }, `Nothing ${left > 0 ? 'else ' : ''}is wrong, as far as nfqproxy can see.`),
      h('ul', null, shown.map((f) => finding(f, { canWhy: this.topology?.canWhy, open: open.has(f.code + f.text) }))),
      !this.all && this.list.length > shown.length && h('button', { type: 'button', class: 'button small', onclick: () => { this.all = true; this.drawFindings(); } }, `Show all ${this.list.length}`));
  }

  drawNodes(list) {
    this.nodes.hidden = list.length === 0;
    replace(this.nodes, h('h2', { id: 'nodes-title' }, plural(list.length, 'node')), h('ul', { class: 'node-list' }, list.map((n) => this.node(n))));
  }

  node({ node, proxy, problems, daemon: d }) {
    const bad = problems?.length ?? 0;
    const fill = d?.connections && d.connections.limit > 0 ? d.connections.entries / d.connections.limit : null;
    const age = d?.table ? (Date.parse(d.time) - Date.parse(d.table.built)) / 1000 : null;
    return h('li', null,
      h('div', { class: 'node-head' }, h('a', { class: 'name', href: link(new URLSearchParams({ node })) }, node), h('span', { class: 'pill', 'data-tone': bad > 0 ? 'bad' : proxy ? 'pass' : 'good' }, bad > 0 ? plural(bad, 'problem') : proxy ? 'no daemon' : 'healthy')),
      proxy && h('p', { class: 'hint' }, proxy, '  ·  flows are not recorded'),
      d?.observed && h('p', { class: 'hint' }, `${d.observed} decides; nfqproxy only observes`),
      bad > 0 && h('ul', { class: 'problems' }, problems.map((p) => h('li', null, p.text))),
      d && h('p', { class: 'hint' }, [
        d.table ? `table ${number(d.table.generation)}, ${age < 1 ? 'new' : `${seconds(age)} old`}: ${plural(d.table.services, 'service')}, ${plural(d.table.endpoints, 'endpoint')}` : 'no service table yet',
        Object.values(d.decidedBy ?? {}).includes('kernel-copy') && 'the kernel’s copy decides',
        fill !== null && `${plural(d.connections.entries, 'connection')} (${percent(fill)} of the table)`,
      ].filter(Boolean).join('  ·  ')));
  }
}
