// The view of a course: the step under way with its task, the units, and a shell. With ?projector it shows the step to a
// class, without the student's controls.

import { setToken, token } from './api.js';
import { course } from './course.js';
import { announce, h, icon, replace, setText } from './dom.js';
import { plural } from './format.js';
import { inline, prose } from './prose.js';
import { Shell } from './shell.js';
import { LessonTask } from './task.js';
import { tokenForm } from './tokenform.js';
import { unitList } from './units.js';

/** result shows the lines of a notice. Those between sentences are output: of the packet that was held. */
function result(text) {
  const nodes = [];
  for (const line of text ? text.trimEnd().split('\n') : []) {
    if (nodes.length === 0 || /^(done: |unit .* is finished|Send )/.test(line)) nodes.push(h('p', null, inline(line)));
    else if (nodes.at(-1).localName === 'pre') nodes.at(-1).append(`\n${line}`);
    else nodes.push(h('pre', { tabindex: 0 }, line));
  }
  return nodes;
}

/** starting is whether there is no unit because the next one's lab starts. */
const starting = (lesson) => !lesson.unit && lesson.good;

export class LearnView {
  title = 'Learn';

  constructor(route) {
    this.projector = route.query.has('projector');
    this.heading = h('h1', { id: 'title' });
    this.about = h('p', { class: 'hint' });
    this.problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    this.steps = h('ol', { class: 'lesson-steps', 'aria-label': 'Steps' });
    this.step = h('h2', { tabindex: -1 });
    this.text = h('div', { class: 'prose' });
    this.notice = h('div', { class: 'lesson-notice', role: 'status', 'aria-label': 'Result' });
    this.access = h('div', { class: 'card-box', hidden: true });
    this.task = new LessonTask(this.projector ? null : (command, argument) => this.do(command, argument));
    this.article = h('article', { class: 'lesson' }, this.steps, this.step, this.text, this.notice, this.task.element, this.access);
    this.list = h('div', { class: 'lesson-units', id: 'lesson-units', hidden: true });
    this.element = h('section', { class: 'learn', 'aria-labelledby': 'title' },
      h('header', { class: 'lesson-head' }, h('div', null, this.heading, this.about), this.tools()), this.list, this.problem,
      h('div', { class: 'lesson-columns' }, this.article, this.shellBox()));
    this.element.classList.toggle('projector', this.projector);
    this.element.addEventListener('keydown', (e) => this.switch(e), true); // before the terminal
    this.keys = this.projector ? { Escape: () => this.project() } : { a: () => this.task.focus(), n: () => this.task.next(), u: () => this.toggleUnits(), p: () => this.project(), F2: () => this.shell?.focus() };
    this.unlisten = course.listen(() => this.show());
    course.follow();
    this.show();
    if (!this.projector && !token()) this.askToken('');
  }

  /** update keeps the view if only the lesson differs. */
  update(route) { return this.projector === route.query.has('projector'); }

  leave() {
    this.unlisten();
    this.shell?.leave();
  }

  project() { location.hash = this.projector ? '#/learn' : '#/learn?projector'; }

  tools() {
    if (this.projector) return h('a', { class: 'button small', href: '#/learn' }, 'Leave the projector view');
    this.unitsButton = h('button', { type: 'button', class: 'button', 'aria-expanded': 'false', 'aria-controls': 'lesson-units', title: 'All units (u)', onclick: () => this.toggleUnits() }, icon('learn'), 'Units');
    return h('div', { class: 'tools' }, this.unitsButton, h('a', { class: 'button', href: '#/learn?projector', title: 'Large type for a class (p)' }, icon('projector'), 'Projector'));
  }

  shellBox() {
    if (this.projector) return null;
    this.shellTitle = h('h2', { id: 'shell-title' }, 'Shell');
    this.box = h('section', { class: 'lesson-shell', 'aria-labelledby': 'shell-title' },
      h('header', null, this.shellTitle, h('p', { class: 'hint' }, h('span', { class: 'keyboard' }, h('kbd', null, 'F2'), ' text or shell. '), 'In a terminal: ', h('code', null, 'nfqproxy learn shell'))));
    return this.box;
  }

  toggleUnits(open = this.list.hidden) {
    if (this.list.hidden !== open) return;
    this.list.hidden = !open;
    this.unitsButton.setAttribute('aria-expanded', String(open));
    if (open) (this.list.querySelector('[aria-current]') ?? this.list.querySelector('button'))?.focus();
  }

  /** switch moves the focus between the text and the shell: Tab is the shell's own there. */
  switch(e) {
    if (e.key !== 'F2' || !this.shell) return;
    e.preventDefault();
    e.stopPropagation();
    if (this.box.contains(document.activeElement)) { if (!this.task.focus()) this.step.focus(); } else this.shell.focus();
  }

  askToken(wrong) {
    replace(this.access, tokenForm(h('h2', null, 'Token'), 'Commands and the shell require the token. The address that "nfqproxy lab status" prints contains it.', wrong, () => { this.access.hidden = true; this.show(); }));
    this.access.hidden = false;
    if (wrong) this.access.querySelector('input').focus();
  }

  /** do carries a command out, and shows why that failed. */
  async do(command, argument) {
    const generation = course.lesson?.generation;
    this.say('');
    this.task.busy(true);
    try {
      await course.do(command, argument);
      if (command === 'check' && course.lesson?.generation === generation) this.say(`Not done yet: ${plural(this.task.open(), 'thing')} to do.`);
      if (command === 'start') this.toggleUnits(false);
      return true;
    } catch (e) {
      if (e.status === 401) { setToken(''); this.askToken(e.message); } else this.say(e.message);
      return false;
    } finally {
      this.task.busy(false);
    }
  }

  /** say shows what is not part of the lesson, until its next change. */
  say(message) {
    this.message = message;
    this.shownAt = course.lesson?.generation;
    this.showNotice(course.lesson);
  }

  show() {
    const { lesson } = course;
    setText(this.problem, course.error && (course.lesson || course.following ? 'The course does not respond. Is nfqproxy learn still running?' : 'No course is running here. To start one: nfqproxy learn'));
    this.problem.hidden = !course.error;
    if (!lesson) { setText(this.heading, 'Learn'); return; }
    const unit = lesson.units.find((u) => u.id === lesson.unit);
    setText(this.heading, lesson.unit ? `${lesson.unit} ${lesson.title}` : 'Learn');
    setText(this.about, [lesson.student, unit?.chapter, unit && `about ${unit.minutes} minutes`].filter(Boolean).join(' · '));
    if (!this.projector) this.showUnits(lesson);
    this.showStep(lesson);
    this.task.show(lesson);
    if (this.shownAt !== lesson.generation) this.message = '';
    this.showNotice(lesson);
    if (this.box) this.showShell(lesson);
  }

  showUnits(lesson) {
    const text = JSON.stringify([lesson.units, lesson.unit]);
    if (this.units !== text) {
      this.units = text;
      const focused = this.list.contains(document.activeElement) && document.activeElement.dataset.unit;
      replace(this.list, unitList(lesson, (id) => this.do('start', id)));
      if (focused) this.list.querySelector(`[data-unit="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    const choosing = !lesson.unit && !starting(lesson);
    if (choosing !== Boolean(this.choosing)) this.toggleUnits(choosing);
    this.choosing = choosing;
  }

  /** showStep shows the text of the step under way. If the focus was in the task before, it is at the heading then. */
  showStep(lesson) {
    const step = lesson.steps[lesson.step];
    const finished = lesson.unit && !step;
    const none = lesson.unit ? '' : starting(lesson) ? 'The next unit starts' : 'No unit is running';
    const text = JSON.stringify([lesson.unit, lesson.step, lesson.steps, lesson.html, none]);
    if (this.shown === text) return;
    const lost = this.task.element.contains(document.activeElement) || document.activeElement === document.body;
    const first = this.shown === undefined;
    this.shown = text;
    replace(this.steps, lesson.steps.map((s, i) => {
      const [state, word] = s.passed ? ['passed', 'done'] : i === lesson.step ? ['now', 'current'] : ['ahead', 'to do'];
      return h('li', { class: state, 'aria-current': state === 'now' ? 'step' : null, title: s.title }, h('span', { class: 'number', 'aria-hidden': 'true' }, s.passed ? '✓' : i + 1), h('span', { class: 'unseen' }, `${s.title}: ${word}`));
    }));
    this.steps.hidden = lesson.steps.length === 0;
    setText(this.step, step ? `Step ${lesson.step + 1} of ${lesson.steps.length}: ${step.title}` : none || 'The unit is finished');
    replace(this.text, prose(lesson.html), finished && !lesson.next ? h('p', null, 'All units are finished.') : null, lesson.unit || starting(lesson) ? null : h('p', null, 'Select a unit.'));
    if (first || !lost) return;
    this.step.focus({ preventScroll: true });
    this.article.scrollIntoView({ block: 'nearest' });
  }

  showNotice(lesson) {
    const text = this.message || lesson?.notice || '';
    const tone = this.message ? 'wait' : lesson?.good ? 'good' : 'bad';
    if (this.notice.dataset.text === text && this.notice.dataset.tone === tone) return;
    Object.assign(this.notice.dataset, { text, tone });
    replace(this.notice, result(text));
  }

  /** showShell opens the shell as soon as there are a unit and a token. It follows the course by itself. */
  showShell(lesson) {
    setText(this.shellTitle, lesson.shell ? `Shell on ${lesson.shell}` : 'Shell');
    if (this.shell || !lesson.unit || !token()) return;
    this.shell = new Shell();
    this.box.append(this.shell.element);
    this.shell.start().catch((e) => announce(e.message));
  }
}
