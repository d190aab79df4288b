// The course that a student takes: its state as it changes, and the student's commands.

import { get, pause, post } from './api.js';

const AGAIN = 300; // milliseconds from a failed request to the next: the next unit's lab has the same address
const LATE = 3000; // milliseconds without a response after which the state counts as old

class Course {
  constructor() {
    this.lesson = null; // the last state
    this.error = ''; // why there is no newer one
    this.listeners = new Set();
    this.beginnings = new Set();
  }

  /** listen registers a callback for changes, and returns what ends that. */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** begun registers a callback for the beginning of another unit: the lab is another one. */
  begun(listener) { this.beginnings.add(listener); }

  /** follow requests the state at each change, as long as the page is open. */
  async follow() {
    if (this.following) return;
    this.following = true;
    for (let after = 0, failed = 0; ;) {
      try {
        const lesson = await get(`/v1/lesson?after=${after}`);
        this.take(lesson, failed > 0);
        after = lesson.generation;
        failed = 0;
      } catch (e) {
        if (e.status === 404 && !this.lesson) { // there is none, and none begins at this address
          this.following = false;
          this.error = e.message;
          this.changed();
          return;
        }
        after = 0; // a course that was started again counts from the beginning
        failed ||= performance.now();
        if (performance.now() - failed > LATE && this.error !== e.message) {
          this.error = e.message;
          this.changed();
        }
        await pause(this.error ? LATE : AGAIN);
      }
    }
  }

  take(lesson, again) {
    const before = this.lesson;
    const same = before?.generation === lesson.generation && !again && !this.error;
    this.lesson = lesson;
    this.error = '';
    if (same) return; // nothing happened for some time
    if (before && (again || before.unit !== lesson.unit || before.step > lesson.step)) for (const listener of this.beginnings) listener();
    this.changed();
  }

  changed() { for (const listener of this.listeners) listener(this); }

  /** do carries a command out, and returns what it reports. A command that begins a unit ends the server that takes it. */
  async do(command, argument) {
    try {
      return (await post('/v1/lesson', argument ? { command, argument } : { command })).text;
    } catch (e) {
      if (e.status === 0 && ['start', 'next', 'reset', 'again'].includes(command)) return '';
      throw e;
    }
  }
}

/** course is the only one. */
export const course = new Course();
