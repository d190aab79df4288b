package apiserver

import (
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// saveInterval is how old the saved objects of a daemon that runs are at most.
const saveInterval = time.Minute

// keeper saves the objects when they have changed: every saveInterval, and at the end.
type keeper struct {
	*Source
	dirty   atomic.Bool
	end     chan struct{}
	running sync.WaitGroup
}

// startKeeper starts one, when all objects are there.
func (s *Source) startKeeper() *keeper {
	k := &keeper{Source: s, end: make(chan struct{})}
	k.dirty.Store(true)
	if s.config.Saved != nil {
		k.running.Go(k.run)
	}
	return k
}

func (k *keeper) changed() { k.dirty.Store(true) }

// close saves the objects a last time.
func (k *keeper) close() {
	close(k.end)
	k.running.Wait()
}

func (k *keeper) run() {
	tick := time.NewTicker(saveInterval)
	defer tick.Stop()
	for {
		select {
		case <-k.end:
			k.save()
			return
		case <-tick.C:
			k.save()
		}
	}
}

func (k *keeper) save() {
	var err error
	if k.dirty.Swap(false) {
		err = k.config.Saved.Write(k.all())
	} else {
		err = k.config.Saved.Touch()
	}
	if err != nil {
		k.dirty.Store(true)
		k.config.Logger.Warn("cannot save the objects of the API server; a daemon that starts while it is away cannot use them", "error", err)
	}
}

// all returns the objects of the informers.
func (s *Source) all() servicetable.Update {
	u := servicetable.Update{
		All:            true,
		Services:       make(map[types.NamespacedName]*servicetable.Service),
		EndpointSlices: make(map[types.NamespacedName]*servicetable.EndpointSlice),
		Nodes:          make(map[string]*corev1.Node),
	}
	for _, store := range s.stores {
		for _, o := range store.List() {
			switch o := o.(type) {
			case *servicetable.Service:
				u.Services[o.ObjectName()] = o
			case *servicetable.EndpointSlice:
				u.EndpointSlices[o.ObjectName()] = o
			case *corev1.Node:
				u.Nodes[o.Name] = o
			}
		}
	}
	return u
}
