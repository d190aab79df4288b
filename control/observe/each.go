package observe

import "context"

// ServiceStreamer is what an [Observer] can be, too: one that gives services one after the
// other, so that nobody has to hold all of them.
type ServiceStreamer interface {
	// EachService calls head once, with what there is besides services, then each for every
	// service that [Observer.Services] would give, in its order. It ends with the first error
	// of either. A service is valid until each returns.
	EachService(ctx context.Context, q ServiceQuery, head func(*Services) error, each func(*Service) error) error
}

// EachService asks any observer as [ServiceStreamer] does.
func EachService(ctx context.Context, o Observer, q ServiceQuery, head func(*Services) error, each func(*Service) error) error {
	if s, ok := o.(ServiceStreamer); ok {
		return s.EachService(ctx, q, head, each)
	}
	answer, err := o.Services(ctx, q)
	if err != nil {
		return err
	}
	services := answer.Services
	answer.Services = nil
	if err := head(answer); err != nil {
		return err
	}
	for i := range services {
		if err := each(&services[i]); err != nil {
			return err
		}
	}
	return nil
}
