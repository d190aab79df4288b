package observe

// Limits of the flow API that both sides have to know.
const (
	// KeepAliveSeconds is how often a stream gives a sign of life at least.
	KeepAliveSeconds = 15
	// PollSeconds is how long a question for a hold's next generation waits at most.
	PollSeconds = 30
)

// EventMissed is the event of a [MissedLine].
const EventMissed = "missed"

// MissedLine is [Missed] as a line between records.
type MissedLine struct {
	Version int    `json:"version"` // flow.Version
	Event   string `json:"event"`   // EventMissed
	Missed
}

// TableList is the flow API's answer with tables.
type TableList struct {
	Tables []Table `json:"tables"`
}

// StatsList is the flow API's answer with counters.
type StatsList struct {
	Nodes []Stats `json:"nodes"`
}

// HoldList is the flow API's answer with holds.
type HoldList struct {
	Holds []Hold `json:"holds"`
}
