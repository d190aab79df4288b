// Package parallel shares work on long lists among the processors.
package parallel

import (
	"runtime"
	"sync"
)

// few is the length of a list up to which one processor does all: more would not save a millisecond.
const few = 4096

// Chunks calls do for consecutive parts of a list of n elements, [from, to) each, at the same time on all processors,
// and returns the results in the order of the list.
func Chunks[T any](n int, do func(from, to int) T) []T {
	chunks := 1
	if n > few {
		chunks = runtime.GOMAXPROCS(0)
	}
	results := make([]T, chunks)
	var done sync.WaitGroup
	for i := range chunks {
		done.Go(func() { results[i] = do(n*i/chunks, n*(i+1)/chunks) })
	}
	done.Wait()
	return results
}
