package iptables

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Time is "-m time": the time of the packet (xt_time.c).
type Time struct {
	// Begin and End are the first and the last second, in seconds since 1970. The kernel
	// has 32 bits for them.
	Begin, End Condition[uint32]
	// From and To are seconds of the day, both included; a time that ends before it begins spans
	// midnight.
	From, To  uint32
	MonthDays uint32 // bit n: the n-th day of the month
	WeekDays  uint8  // bit n: the n-th day of the week, of which Monday is the first
	// Contiguous: a time that spans midnight belongs to the day on which it began.
	Contiguous bool
	// KernelZone: times are of the kernel's time zone; else UTC.
	KernelZone bool
}

// All days of a month and of a week (xt_time.h).
const (
	AllMonthDays = 0xfffffffe
	AllWeekDays  = 0xfe
	endOfDay     = 24*60*60 - 1
)

// latestTime is the end of a time without one.
const latestTime = 1<<31 - 1

// Contains reports whether the time matches.
func (m *Time) Contains(at time.Time) bool {
	stamp := at.Unix()
	if m.Begin.Given && stamp < int64(m.Begin.Value) || m.End.Given && stamp > int64(m.End.Value) || stamp < 0 || stamp > latestTime && !m.End.Given {
		return false
	}
	const day = 24 * 60 * 60
	second := uint32(stamp % day)
	if m.From < m.To {
		if second < m.From || second > m.To {
			return false
		}
	} else {
		if second < m.From && second > m.To {
			return false
		}
		if m.Contiguous && second <= m.To {
			stamp -= day
		}
	}
	date := time.Unix(stamp, 0).UTC()
	return m.WeekDays&(1<<weekday(date)) != 0 && m.MonthDays&(1<<date.Day()) != 0
}

// weekday counts from Monday, the first.
func weekday(t time.Time) int { return (int(t.Weekday())+6)%7 + 1 }

var weekdayNames = []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}

var aTimeOfDay = kind[uint32]{"a time of the day", "hh:mm or hh:mm:ss", func(s string) (uint32, bool) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, false
	}
	seconds := uint32(0)
	for i, most := range []uint64{23, 59, 59}[:len(parts)] {
		n, err := strconv.ParseUint(cmp.Or(parts[i], "0"), 10, 8)
		if err != nil || n > most {
			return 0, false
		}
		seconds = 60*seconds + uint32(n)
	}
	if len(parts) == 2 {
		seconds *= 60
	}
	return seconds, true
}}

// dateLayouts are the forms of dates that iptables reads; missing parts have their first value
// (libxt_time.c, time_parse_date).
var dateLayouts = []string{"2006-1-2T15:4:5", "2006-1-2T15:4", "2006-1-2T15", "2006-1-2", "2006-1", "2006"}

const dateLayout = "2006-01-02T15:04:05"

var aDate = kind[uint32]{"a date", "YYYY-MM-DD or YYYY-MM-DDThh:mm:ss, 1970 to 2038", func(s string) (uint32, bool) {
	for _, layout := range dateLayouts {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return uint32(t.Unix()), 0 <= t.Unix() && t.Unix() <= latestTime
		}
	}
	return 0, false
}}

var monthDays = kind[uint32]{"a list of days of the month", "1 to 31", func(s string) (set uint32, ok bool) {
	for word := range strings.SplitSeq(s, ",") {
		if word == "" { // libxt_time.c skips it
			continue
		}
		n, ok := number[uint8](word)
		if !ok || n < 1 || n > 31 {
			return 0, false
		}
		set |= 1 << n
	}
	return set, true
}}

var weekDays = kind[uint8]{"a list of days of the week", "Mon to Sun, or 1 to 7", func(s string) (set uint8, ok bool) {
	for word := range strings.SplitSeq(strings.TrimSuffix(s, ","), ",") {
		n, ok := number[uint8](word)
		if !ok || n < 1 || n > 7 {
			if n = 0; len(word) >= 2 {
				for i, name := range weekdayNames {
					if strings.EqualFold(name[:2], word[:2]) {
						n = uint8(i + 1)
					}
				}
			}
		}
		if n == 0 {
			return 0, false
		}
		set |= 1 << n
	}
	return set, true
}}

var _ = addMatch(&module{
	name: "time",
	shapes: map[string]shape{
		"--datestart": one, "--datestop": one, "--timestart": one, "--timestop": one, "--monthdays": notOne, "--weekdays": notOne,
		"--contiguous": flag, "--kerneltz": flag, "--utc": flag,
	},
	phrases: map[string]phrase{"TIME": timePhrase},
	build: func(s *section) Match {
		m := Time{
			Begin: condition(s, "--datestart", aDate), End: condition(s, "--datestop", aDate),
			From: optional(s, "--timestart", aTimeOfDay, 0), To: optional(s, "--timestop", aTimeOfDay, endOfDay),
			MonthDays: AllMonthDays, WeekDays: AllWeekDays,
			Contiguous: s.has("--contiguous"), KernelZone: s.has("--kerneltz"),
		}
		if c := condition(s, "--monthdays", monthDays); c.Given {
			if m.MonthDays = c.Value; c.Negated {
				m.MonthDays ^= AllMonthDays
			}
		}
		if c := condition(s, "--weekdays", weekDays); c.Given {
			if m.WeekDays = c.Value; c.Negated {
				m.WeekDays ^= AllWeekDays
			}
		}
		return m
	},
})

func (Time) module() string { return "time" }

// write is time_save (libxt_time.c), which prints negated sets as their complement.
func (m Time) write(w *words) {
	if m.From != 0 || m.To != endOfDay {
		w.bare("--timestart", timeOfDay(m.From), "--timestop", timeOfDay(m.To))
	}
	if m.MonthDays != AllMonthDays {
		w.bare("--monthdays", daysOf(m.MonthDays, func(n int) string { return strconv.Itoa(n) }))
	}
	if m.WeekDays != AllWeekDays {
		w.bare("--weekdays", daysOf(uint32(m.WeekDays), func(n int) string { return weekdayNames[n-1] }))
	}
	for _, d := range []struct {
		option string
		Condition[uint32]
	}{{"--datestart", m.Begin}, {"--datestop", m.End}} {
		if d.Given {
			w.bare(d.option, time.Unix(int64(d.Value), 0).UTC().Format(dateLayout))
		}
	}
	w.flag(m.KernelZone, "--kerneltz")
	w.flag(m.Contiguous, "--contiguous")
}

func (Time) reads() Facts { return FactKernel }

// test is time_mt (xt_time.c).
func (m Time) test(c *Context) Truth {
	now := c.Host.Time()
	if now.IsZero() {
		return Unknown
	}
	c.assume("that it is %s", now.Format(clockLayout))
	if m.KernelZone {
		c.assume("that the kernel's time zone is UTC")
	}
	return truthOf(m.Contains(now))
}

const clockLayout = "Monday, 2006-01-02 15:04:05 UTC"

func (Time) whyNot(c *Context) string { return "it is " + c.Host.Time().Format(clockLayout) }

func (m Time) unknown(*Context) string {
	return Describe(m) + " depends on the time, which is not known"
}

func timeOfDay(seconds uint32) string {
	return fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

func daysOf(set uint32, name func(int) string) string {
	var names []string
	for ; set != 0; set &= set - 1 {
		names = append(names, name(bits.TrailingZeros32(set)))
	}
	return strings.Join(names, ",")
}

// timePhrase reads "TIME from 22:00:00 to 06:00:00 on Mon,Tue on 1st,2nd starting from 2020-01-01 10:00:00
// until date 2030-01-01 00:00:00 UTC contiguous".
func timePhrase(w *wording, negated bool) bool {
	w.load("time")
	utc := false
	date := func(option string) bool {
		day, _ := w.next()
		clock, ok := w.next()
		w.emit(false, option, Token{Text: day.Text + "T" + clock.Text, Column: day.Column})
		return ok
	}
	for ok := !negated; ok; {
		switch {
		case w.word("from"):
			ok = w.value("--timestart") && w.word("to") && w.value("--timestop")
		case w.word("on"):
			days, given := w.next()
			option := "--weekdays"
			if days.Text != "" && days.Text[0] <= '9' {
				option = "--monthdays"
				days.Text = strings.NewReplacer("st", "", "nd", "", "rd", "", "th", "").Replace(days.Text)
			}
			w.emit(false, option, days)
			ok = given
		case w.word("starting", "from"):
			ok = date("--datestart")
		case w.word("until", "date"):
			ok = date("--datestop")
		case w.word("UTC"):
			utc = true
		case w.word("contiguous"):
			w.emit(false, "--contiguous")
		default:
			if !utc {
				w.emit(false, "--kerneltz")
			}
			return true
		}
	}
	return false
}
