// The task of a step: its question, its checks, and the student's buttons.

import { announce, h, replace, setText } from './dom.js';
import { plural } from './format.js';
import { inline } from './prose.js';

/** mark is whether something is done, in words. */
const mark = (done) => h('span', { class: 'pill', 'data-tone': done ? 'good' : 'wait' }, done ? 'done' : 'to do');

export class LessonTask {
  /** act carries a command out, and resolves to whether it could be; null: there are no buttons. */
  constructor(act) {
    this.act = act;
    this.held = h('div', { class: 'held', hidden: true });
    this.input = h('input', { type: 'text', id: 'answer', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', 'aria-describedby': 'question' });
    this.question = h('div', { class: 'question', id: 'question' });
    this.form = h('form', { class: 'answer-form', onsubmit: (e) => { e.preventDefault(); this.answer(); } }, h('label', { for: 'answer' }, 'Your answer'), this.input, h('button', { type: 'submit', class: 'button primary' }, 'Answer'));
    this.checks = h('ul', { class: 'checks', 'aria-label': 'Checks' });
    this.hints = h('ol', { class: 'hints', 'aria-label': 'Hints' });
    this.solution = h('div', { class: 'solution', hidden: true });
    this.element = h('div', { class: 'task' }, this.held, this.question, act && this.form, this.checks, act && this.buttons(), this.hints, this.solution);
    this.drawn = {};
  }

  buttons() {
    const button = (command, text, props) => h('button', { type: 'button', class: 'button', id: `learn-${command}`, onclick: () => this.act(command), ...props }, text);
    this.button = { next: button('next', 'Next', { class: 'button primary' }), hint: button('hint', 'Hint'), check: button('check', 'Check'), solution: button('solution', 'Solution') };
    this.more = h('details', { class: 'more' }, h('summary', { class: 'button' }, 'Start over'), h('div', { class: 'menu' },
      h('p', { class: 'hint' }, 'The unit starts at its first step, in a new lab.'),
      button('reset', 'Same values', { onclick: () => this.anew('reset') }), button('again', 'Other values', { onclick: () => this.anew('again') })));
    this.bar = h('div', { class: 'lesson-buttons', role: 'group', 'aria-label': 'Commands' }, Object.values(this.button), this.more);
    return this.bar;
  }

  anew(command) {
    this.more.open = false;
    this.act(command);
  }

  async answer() {
    const value = this.input.value.trim();
    if (!value) { this.input.focus(); return; }
    await this.act('answer', value);
    if (this.form.isConnected && !this.form.hidden && this.form.contains(document.activeElement)) { this.input.focus(); this.input.select(); }
  }

  /** focus moves to the answer; false: there is no question. */
  focus() {
    if (!this.act || this.form.hidden) return false;
    this.input.focus();
    return true;
  }

  next() { return this.button.next.hidden ? false : this.button.next.click(); }

  busy(is) { this.bar.setAttribute('aria-busy', String(is)); }

  /** open is the number of things that are not done. */
  open() { return this.lesson.checks.filter((c) => !c.met).length + (this.lesson.question && !this.lesson.answered ? 1 : 0); }

  /** draw makes a part anew if what it shows has changed. */
  draw(name, what, make) {
    const text = JSON.stringify(what);
    if (this.drawn[name] === text) return;
    this.drawn[name] = text;
    replace(this[name], make(what));
  }

  show(lesson) {
    const before = this.lesson;
    this.lesson = lesson;
    const step = lesson.steps[lesson.step];
    const other = before?.unit !== lesson.unit || before?.step !== lesson.step;
    if (other) this.input.value = '';
    const facts = lesson.held ?? [];
    this.held.hidden = facts.length === 0;
    this.draw('held', facts, ([first, ...rest]) => [h('h3', null, 'A packet is held for you'), h('p', { class: 'mono' }, first), h('ul', { class: 'mono' }, rest.map((f) => h('li', null, f)))]);
    if (facts.length > 0 && !before?.held?.length) announce('A packet is held');
    this.draw('question', [lesson.question, lesson.answered], ([text, answered]) => text && [mark(answered), h('p', null, inline(text.trim()))]);
    this.question.hidden = !lesson.question;
    this.form.hidden = !lesson.question || lesson.answered;
    this.draw('checks', lesson.checks, (list) => list.map((c) => h('li', null, mark(c.met), h('div', null, h('p', null, inline(c.text)), c.detail && !c.met && h('p', { class: 'hint' }, c.detail)))));
    this.checks.hidden = lesson.checks.length === 0;
    if (!other) for (const [i, c] of lesson.checks.entries()) if (c.met && before.checks[i]?.met === false) announce(`done: ${c.text}`);
    this.draw('hints', lesson.hints, (list) => list.map((text) => h('li', null, inline(text))));
    if (!other && lesson.hints.length > before.hints.length) announce(`Hint: ${lesson.hints.at(-1)}`);
    this.hints.hidden = lesson.hints.length === 0;
    this.draw('solution', lesson.solution, (text) => text && [h('h3', null, 'Solution'), h('pre', { tabindex: 0 }, text.trimEnd())]);
    this.solution.hidden = !lesson.solution;
    if (this.act) this.showButtons(lesson, step);
  }

  showButtons(lesson, step) {
    const { next, hint, check, solution } = this.button;
    const task = step && !step.read;
    const following = lesson.units.find((u) => u.id === lesson.next);
    next.hidden = !lesson.unit || Boolean(task) || (!step && !following);
    setText(next, step ? 'Next' : following ? `Next unit: ${following.id} ${following.title}` : '');
    hint.hidden = !task;
    hint.disabled = lesson.hintsLeft === 0;
    setText(hint, lesson.hintsLeft > 0 ? `Hint (${plural(lesson.hintsLeft, 'more', 'more')})` : 'No more hints');
    check.hidden = !task || lesson.checks.length === 0;
    solution.hidden = !task || Boolean(lesson.solution);
    this.more.hidden = !lesson.unit;
    document.getElementById('learn-again')?.toggleAttribute('hidden', Boolean(lesson.student)); // in a class each student has one version
  }
}
