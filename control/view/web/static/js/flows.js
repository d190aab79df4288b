// The live view of flows.

import { h, icon, replace, setText } from './dom.js';
import { FilterBar } from './filterbar.js';
import { nextStep } from './idle.js';
import { Seen, chipsOf, filtersOf, link, past, withFilter } from './filter.js';
import { number, rate, seconds } from './format.js';
import { gapNotes, missedNotes } from './notes.js';
import { ServicesSwitch } from './only.js';
import { Row, columns } from './row.js';
import { Sender } from './send.js';
import { Spark } from './spark.js';
import { stream } from './stream.js';
import { TimeRange } from './timerange.js';
import { Widths } from './widths.js';
import { errors, meanings } from './words.js';

const SHOWN = 200; // rows in the table

const seen = new Seen();
stream.listen(({ fresh }) => { for (const r of fresh) seen.record(r); });

function figure(label, title, spark) {
  const value = h('span', { class: 'number' }, '0');
  return { value, spark, element: h('div', { class: 'figure', title }, h('div', null, value, h('span', { class: 'label' }, label)), spark?.element) };
}

export class FlowsView {
  title = 'Flows';

  constructor(route) {
    this.rows = new Map(); // of the table, by ID
    this.bar = new FilterBar(seen, (filters) => { location.hash = link(filters); });
    this.figures = {
      flows: figure('flows/s', 'new flows per second, mean of the last three seconds', new Spark()),
      unanswered: figure('unanswered', 'in the last minute', new Spark()),
      errors: figure('errors', `${errors.join(', ')} in the last minute`, new Spark()),
    };
    for (const [name, f] of Object.entries(this.figures)) f.element.dataset.figure = name;
    this.pause = h('button', { type: 'button', class: 'button', id: 'pause', 'aria-pressed': 'false', onclick: () => this.setPaused(!this.paused) });
    this.services = new ServicesSwitch((filters) => { location.hash = link(filters); });
    this.time = new TimeRange((filters) => { location.hash = link(filters); }, () => stream.again());
    this.sender = new Sender((flows) => { location.hash = flows; });
    this.notice = h('p', { class: 'notice', id: 'notice', role: 'status', hidden: true });
    this.body = h('tbody', { id: 'rows' });
    this.empty = h('div', { class: 'empty', hidden: true });
    this.element = h('section', { class: 'flows', 'aria-labelledby': 'title' },
      h('h1', { class: 'unseen', id: 'title' }, 'Flows'),
      h('div', { class: 'toolbar' }, this.bar.element, this.time.element, this.services.element, this.pause),
      this.sender.element,
      h('div', { class: 'figures' }, Object.values(this.figures).map((f) => f.element), this.services.leftOut, this.notice),
      h('div', { class: 'tablebox' },
        this.table = h('table', { class: 'table', onclick: (e) => this.click(e) },
          h('caption', { class: 'unseen' }, 'Flows, newest first'),
          h('thead', null, h('tr', null, columns.map(([name, title]) => h('th', { class: name, scope: 'col', title: meanings[name] }, title)))),
          this.body),
        this.empty));
    this.widths = new Widths(this.table);
    this.update(route);
    this.setPaused(false);
    this.unlisten = stream.listen(() => this.draw());
  }

  /** update shows the filters of another address of this view. */
  update(route) {
    const filters = filtersOf(route.query);
    this.filters = filters;
    this.bar.show(filters);
    if (stream.filters !== filters.toString()) this.clear();
    stream.open(filters);
    this.services.show(filters);
    this.time.show(filters);
    this.past = past(filters);
    this.pause.hidden = this.past;
    for (const f of Object.values(this.figures)) f.element.hidden = this.past;
    if (this.past && this.paused) this.setPaused(false);
    return true;
  }

  leave() {
    this.unlisten();
    this.sender.leave();
    this.widths.leave();
  }

  keys = {
    j: () => this.move(1), ArrowDown: () => this.move(1),
    k: () => this.move(-1), ArrowUp: () => this.move(-1),
    Enter: () => { if (!this.selected) return false; location.hash = `#/flows/${encodeURIComponent(this.selected)}`; return true; },
    '/': () => this.bar.input.focus(),
    p: () => { if (!this.past) this.setPaused(!this.paused); },
    Escape: () => this.select(''),
  };

  clear() {
    this.rows.clear();
    this.widths.clear();
    this.selected = '';
    this.body.replaceChildren();
  }

  setPaused(is) {
    this.paused = is;
    this.since = stream.rates.now();
    this.pause.setAttribute('aria-pressed', String(is));
    const label = is ? 'Resume' : 'Pause';
    this.pause.setAttribute('aria-label', label); // on a phone, the text is hidden
    replace(this.pause, icon(is ? 'play' : 'hold'), h('span', null, label), h('kbd', { 'aria-hidden': 'true' }, 'p'));
    this.body.classList.toggle('paused', is);
    if (!is) { this.select(''); this.draw(); }
  }

  move(by) {
    if (!this.paused) this.setPaused(true); // moving rows cannot be read
    const ids = [...this.body.children].map((tr) => tr.dataset.id);
    if (ids.length === 0) return;
    const at = ids.indexOf(this.selected);
    this.select(ids[Math.min(ids.length - 1, Math.max(0, at + (at < 0 ? 1 : by)))]);
  }

  select(id) {
    this.rows.get(this.selected)?.select(false);
    if (this.selected && !id) document.getElementById('main').focus({ preventScroll: true });
    this.selected = id;
    this.rows.get(id)?.select(true);
  }

  click(e) {
    const value = e.target.closest('.value');
    if (value) {
      location.hash = link(withFilter(this.filters, value.dataset.field, value.dataset.value));
      return;
    }
    const row = e.target.closest('tr[data-id]');
    if (row && !e.target.closest('a')) location.hash = `#/flows/${encodeURIComponent(row.dataset.id)}`;
  }

  draw() {
    const { rates } = stream;
    setText(this.figures.flows.value, rate(rates.perSecond()));
    setText(this.figures.unanswered.value, number(rates.sum('unanswered')));
    setText(this.figures.errors.value, number(rates.sum('errors')));
    for (const [kind, f] of Object.entries(this.figures)) {
      f.spark.draw(rates.series(kind));
      f.element.classList.toggle('some', kind !== 'flows' && f.value.textContent !== '0');
    }
    this.drawNotice();
    this.services.draw();
    this.bar.fail(stream.error);
    if (!this.paused) this.drawRows();
    else for (const [id, row] of this.rows) { const r = stream.rows.get(id); if (r) row.update(r); }
    const nothing = this.rows.size === 0;
    this.empty.hidden = !nothing;
    if (!nothing) return;
    const filtered = chipsOf(this.filters).length > 0, text = this.past ? (stream.read ? 'No recorded flow in this time range matches.' : 'Reading the history …') : filtered ? 'No flow matches the filters yet. New matches appear here.' : stream.connected ? 'No flows yet.' : 'Connecting …';
    if (this.shown === text) return;
    this.shown = text;
    replace(this.empty, h('p', null, text), !this.past && !filtered && stream.connected && nextStep());
  }

  drawNotice() {
    if (this.past) return this.drawPast();
    const notes = [];
    if (stream.sample > 1) notes.push(`Showing 1 of ${stream.sample} flows, counting all.`);
    if (stream.rates.late > 0) notes.push(`This page is ${seconds(stream.rates.late / 1000)} behind: more flows than this browser can process.`);
    notes.push(...missedNotes());
    if (this.paused) notes.push('Paused. Counting continues.');
    this.note(notes);
  }

  drawPast() {
    const notes = gapNotes();
    if (stream.read && stream.rows.size >= SHOWN) notes.unshift(`Only the newest ${SHOWN} flows in this time range are shown: filter them, or choose a shorter range.`);
    if (stream.read && !this.filters.has('until')) notes.push('The flows of the last minute may not be written yet: see Live.');
    this.note(notes);
  }

  note(notes) {
    const text = notes.join(' ');
    this.notice.hidden = !text;
    setText(this.notice, text);
  }

  /** drawRows brings the table to the newest rows of the stream. */
  drawRows() {
    const newest = stream.newest(SHOWN);
    const keep = new Set(newest.map((r) => r.id));
    for (const [id, row] of this.rows) {
      if (keep.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    let next = this.body.firstElementChild;
    for (const r of newest) {
      let row = this.rows.get(r.id);
      if (row) {
        if (row.update(r)) this.widths.add(r);
      } else {
        this.rows.set(r.id, row = new Row(r));
        this.widths.add(r);
      }
      if (row.element === next) next = next.nextElementSibling;
      else this.body.insertBefore(row.element, next);
    }
    this.widths.apply();
  }
}

